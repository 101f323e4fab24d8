cp "$ROOT/examples-c/hello.c" engine.c
