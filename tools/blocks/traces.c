#include <unistd.h>
#define sleep(seconds) usleep(1000)
int main(void) {
    BLOCKS
    return 0;
}
