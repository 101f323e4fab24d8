# Runs the two sides of random_fill against each other. To be sourced; the caller sets:
#     fill         the program
#     logs         a folder
#     prefill_in   words before the prefill side's command, as (ip netns exec NAME); decode_in likewise
# and may change `guard`, the words that keep a side from running for ever.
# What hangs ends after five minutes: no test is judged by that.
prefill_in=() decode_in=() guard=(timeout --foreground -k 5 300) prefill_pid=

# Starts the prefill side, waits until it listens, and stores HOST:PORT in `place`.
start_prefill() { # log name, host, options...
    local log=$logs/$1.prefill host=$2 tries
    shift 2
    "${guard[@]}" "${prefill_in[@]}" "$fill" prefill --listen "$host:0" "$@" \
        >"$log.out" 2>"$log.err" </dev/null &
    prefill_pid=$!
    for ((tries = 0; tries < 600; tries++)); do
        place=$(sed -n 's/^prefill: listening on //p' "$log.err")
        [ -n "$place" ] && return 0
        kill -0 "$prefill_pid" 2>/dev/null || break
        sleep 0.05
    done
    end_prefill
    return 1
}

end_prefill() {
    [ -n "$prefill_pid" ] || return 0
    kill "$prefill_pid" 2>/dev/null || true
    wait "$prefill_pid" 2>/dev/null || true
    prefill_pid=
}

# Runs both sides to their end. What they say is in $logs/NAME.{prefill,decode}.{out,err}; with `show` set, what the
# decode side says on stderr is on the terminal instead.
run_pair() { # log name, host, options of both sides (one string), options of the decode side (one string)
    local name=$1 both_options decode_options failed=0 err=2
    read -ra both_options <<<"$3"
    read -ra decode_options <<<"$4"
    rm -f "$logs/$name".*
    start_prefill "$name" "$2" "${both_options[@]}" || return 1
    [ -n "${show:-}" ] || exec {err}>"$logs/$name.decode.err"
    "${guard[@]}" "${decode_in[@]}" "$fill" decode --connect "$place" "${both_options[@]}" \
        "${decode_options[@]}" >"$logs/$name.decode.out" 2>&"$err" </dev/null || failed=1
    [ "$err" = 2 ] || exec {err}>&-
    if [ "$failed" = 1 ]; then
        sleep 1 # the prefill side learns of it, and says so
        end_prefill
        return 1
    fi
    wait "$prefill_pid" || failed=1
    prefill_pid=
    return "$failed"
}
