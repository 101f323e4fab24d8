# An engine that is measured; `top`, which goes on, is ended as by Ctrl-C.
cat >engine <<'ENGINE'
exec weft-bench loopback --provider tcp --rail-names lo --seconds 60
ENGINE
chmod +x engine
mkdir -m 700 run
export XDG_RUNTIME_DIR=$PWD/run
weft-bench() {
    until compgen -G "run/weft/*.sock"; do kill -0 $! && sleep 0.1; done
    timeout -s INT 3 "$(type -P weft-bench)" "$@" >seen || [ "$* $?" = "top 124" ]
    cat seen
    grep -q 'weft-bench' seen
}
