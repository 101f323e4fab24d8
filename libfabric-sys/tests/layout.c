/* Prints what the headers say of the structs, fields and constants in entries.h, which
 * tests/layout.rs writes:
 *   version MAJOR MINOR
 *   size STRUCT BYTES
 *   field STRUCT.FIELD OFFSET BYTES
 *   const NAME VALUE */

#include <stddef.h>
#include <stdio.h>

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_ext.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

/* The headers of 2.7 called themselves 2.6 during its development. */
#if FI_MAJOR_VERSION == 2 && FI_MINOR_VERSION == 6 && __has_include(<rdma/fi_xpu.h>)
#define MINOR 7
#else
#define MINOR FI_MINOR_VERSION
#endif

#define AT_LEAST(major, minor) \
	(FI_MAJOR_VERSION > (major) || (FI_MAJOR_VERSION == (major) && MINOR >= (minor)))

#define SIZE(type) printf("size %s %zu\n", #type, sizeof(struct type));
#define FIELD(type, field)                                                            \
	printf("field %s.%s %zu %zu\n", #type, #field, offsetof(struct type, field), \
	       sizeof(((struct type *) 0)->field));
#define CONST(name) printf("const %s %lld\n", #name, (long long) (name));

int main(void)
{
	printf("version %d %d\n", FI_MAJOR_VERSION, MINOR);
#include "entries.h"
	return 0;
}
