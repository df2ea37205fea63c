/* table.c - the kernel table of one instruction set. */
#include "kernels/cpu/cpu.h"

extern const zt_kernels ZT_K(table);
const zt_kernels ZT_K(table) = {
#define ZT_KERNEL_ROW(name, params) .name = ZT_K(name),
#define ZT_WORKSPACE_ROW(name, params) .name##_workspace = ZT_K(name##_workspace),
    ZT_KERNELS(ZT_KERNEL_ROW) ZT_KERNEL_WORKSPACES(ZT_WORKSPACE_ROW)};
