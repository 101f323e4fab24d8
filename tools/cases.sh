# Cases of a test, one line for each: to be sourced. The caller sets `logs`, the
# folder of what failed has to say, and `only`, a part of the names to run.
passed=0 failed=0

settle() { # name, 0 or not, what to add
    if [ "$2" = 0 ]; then
        passed=$((passed + 1))
        printf 'ok      %-44s %s\n' "$1" "$3"
        return
    fi
    failed=$((failed + 1))
    printf 'FAILED  %-44s %s\n' "$1" "$3"
    tail -n 12 "$logs"/*.out "$logs"/*.err 2>/dev/null | sed 's/^/        /'
}

skipped_by_name() { [[ "$1" != *"$only"* ]]; }
