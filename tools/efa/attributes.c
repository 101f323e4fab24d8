/* An ioctl of libibverbs: its attributes, read from the program's memory and answered there. */
#include "attributes.h"
#include <errno.h>
#include <string.h>

int call_read(struct call *call, struct owner *client, uint64_t at) {
    _Alignas(struct ib_uverbs_ioctl_hdr) uint8_t bytes[sizeof(struct ib_uverbs_ioctl_hdr)];
    const struct ib_uverbs_ioctl_hdr *header = (const void *)bytes;
    *call = (struct call){.client = client, .at = at, .descriptor = -1};
    if (client_load(client, at, bytes, sizeof bytes)) return EFAULT;
    if (header->num_attrs > MAX_ATTRIBUTES) return EINVAL;
    call->object = header->object_id;
    call->method = header->method_id;
    call->count = header->num_attrs;
    return client_load(client, at + sizeof bytes, call->attributes, call->count * sizeof *call->attributes) ? EFAULT : 0;
}

struct ib_uverbs_attr *call_attribute(struct call *call, int id) {
    for (unsigned i = 0; i < call->count; i++)
        if (call->attributes[i].attr_id == id) return &call->attributes[i];
    return NULL;
}

uint64_t call_number(struct call *call, int id) {
    struct ib_uverbs_attr *attribute = call_attribute(call, id);
    return attribute ? attribute->data : 0;
}

/* Interface: up to 8 bytes are in the attribute itself. */
int call_in(struct call *call, int id, void *to, size_t len) {
    struct ib_uverbs_attr *attribute = call_attribute(call, id);
    memset(to, 0, len);
    if (!attribute) return ENOENT;
    if (attribute->len < len) len = attribute->len;
    if (attribute->len > sizeof attribute->data) return client_load(call->client, attribute->data, to, len) ? EFAULT : 0;
    memcpy(to, &attribute->data, len);
    return 0;
}

int call_out(struct call *call, int id, const void *from, size_t len) {
    struct ib_uverbs_attr *attribute = call_attribute(call, id);
    if (!attribute) return 0;
    if (attribute->len < len) len = attribute->len;
    return client_store(call->client, attribute->data, from, len) ? EFAULT : 0;
}

uint64_t call_slot(struct call *call, int id) {
    struct ib_uverbs_attr *attribute = call_attribute(call, id);
    if (!attribute) return 0;
    return call->at + sizeof(struct ib_uverbs_ioctl_hdr) + (size_t)(attribute - call->attributes) * sizeof *attribute + offsetof(struct ib_uverbs_attr, data);
}

int call_out_handle(struct call *call, int id, uint32_t handle) {
    uint64_t value = handle, slot = call_slot(call, id);
    return !slot || client_store(call->client, slot, &value, sizeof value) ? EFAULT : 0;
}
