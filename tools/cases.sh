# Cases of a test, one line for each, and a last line that counts them; to be sourced. A caller may set `logs`, the
# folder for the output of failed cases, and `only`, a part of the names to run.
passed=0 failed=0 skipped=0

beside() { if [ -n "$2" ]; then printf '%-44s %s' "$1" "$2"; else printf '%s' "$1"; fi; }

settle() { # name, 0 or not, what to add
    if [ "$2" = 0 ]; then
        passed=$((passed + 1))
        echo "ok      $(beside "$1" "${3:-}")"
        return
    fi
    failed=$((failed + 1))
    echo "FAILED  $(beside "$1" "${3:-}")"
    [ -z "${logs:-}" ] || tail -n 12 "$logs"/*.out "$logs"/*.err 2>/dev/null | sed 's/^/        /'
}

# For docs/support.md: what a case that passed was run with.
tested_with() { # a column's name, version
    mkdir -p target/tested && echo "$2" >>"target/tested/$1"
}

# check NAME COMMAND...: its last lines are shown if it fails.
check() {
    local name=$1 said
    shift
    if said=$("$@" 2>&1 </dev/null); then
        settle "$name" 0
    else
        settle "$name" 1
        tail -n 60 <<<"$said" | sed 's/^/    | /'
    fi
}

skip() { # name, why
    skipped=$((skipped + 1))
    echo "skipped $1: $2"
}

skipped_by_name() { [[ "$1" != *"${only:-}"* ]]; }

# The last line, and the status.
counted() {
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" = 0 ]
}
