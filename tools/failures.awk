# What each failed test said, as the log of a stage of tools/test.sh has it: its line, and up to 15 of its lines, indented.
# Tests of ours say it in indented lines after theirs, or before it, since the last result; cargo in a section.
BEGIN { most = 15 }

function add(line) {
    if (line !~ /^ *$/)
        said[++count] = line
}

function finish(    i, first) {
    if (name == "")
        return
    print name
    if (count == 0) { # It said it before.
        first = earlier_count > most ? earlier_count - most + 1 : 1
        for (i = first; i <= earlier_count; i++)
            print "    " earlier[i]
    }
    for (i = 1; i <= count && i <= most; i++)
        print said[i]
    earlier_count = 0
    name = ""
}

/^(FAILED  |[^ ]+: FAILED)/ { finish(); name = $0; count = cargo = 0; next }
/^---- .* stdout ----$/ { finish(); name = $2; count = earlier_count = 0; cargo = 1; next }
/^(ok|skipped) |^[^ ]+: (ok$|skipped: )|^test .* \.\.\. / { finish(); earlier_count = 0; next }
cargo && /^failures:$/ { finish(); cargo = 0; next }
cargo { add("    " $0); next }
name != "" && /^    / { add($0); next }
{ finish(); if ($0 !~ /^ *$/) earlier[++earlier_count] = $0 }
END { finish() }
