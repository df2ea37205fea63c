/* cpu.h - the CPU backend's own header. Every file here is compiled once for each instruction set that the build
** names (CMake sets ZT_ISA to base, v3 or v4, as in x86-64-v3), and the best that the machine has is picked when the
** device opens. So kernel names carry the set: write zt_status ZT_K(fill)(...). Nothing here names an instruction:
** loops are written so that the compiler can vectorize them. */
#ifndef zt_cpu_h
#define zt_cpu_h

#include "core/tensor/kernels.h"

#ifndef ZT_ISA
#error "compile with -DZT_ISA=base (or v3, v4)"
#endif
#define ZT_CAT3_(a, b, c) a##_##b##_##c
#define ZT_CAT3(a, b, c) ZT_CAT3_(a, b, c)
#define ZT_K(name) ZT_CAT3(k, name, ZT_ISA)

#define ZT_KERNEL_PROTOTYPE(name, params) zt_status ZT_K(name) params;
#define ZT_WORKSPACE_PROTOTYPE(name, params) size_t ZT_K(name##_workspace) params;
ZT_KERNELS(ZT_KERNEL_PROTOTYPE)
ZT_KERNEL_WORKSPACES(ZT_WORKSPACE_PROTOTYPE)

#endif
