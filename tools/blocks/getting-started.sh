cp "$ROOT/examples-c/hello.c" program.c
