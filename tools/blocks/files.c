#include <stdlib.h>
#include <unistd.h>
int main(void) {
    char name[] = "/tmp/weft-blocks-XXXXXX";
    int fd = mkstemp(name);
    if (fd < 0 || unlink(name) != 0 || ftruncate(fd, (off_t)2 << 30) != 0)
        return 1;
    weft_endpoint *endpoint;
    weft_memory *memory;
    CHECK(weft_endpoint_create(NULL, &endpoint));
    BLOCKS
    return memory == NULL;
}
