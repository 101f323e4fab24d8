#include <stdio.h>
#include <unistd.h>
#define sleep(seconds) usleep(1000)
int main(void) {
    BLOCKS
    char name[64];
    snprintf(name, sizeof name, "/tmp/slow-%d.json", getpid());
    return unlink(name) != 0;
}
