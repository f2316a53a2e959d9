/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Small things every engine file needs: allocation that cannot fail, assertion classes, rounding.
 *
 * Assertions come in three classes:
 *
 *     dc_assert()   always: cheap, on in every build. A wrong count here is somebody's data held dirty
 *                   without anybody knowing; a server that restarts is better.
 *     dc_audit()    in debug, asan and tsan builds (DC_AUDIT): expensive, walks whole structures.
 *     dc_held()     there too: the lock that a function needs is taken.
 *
 * The fourth kind compares with the kernel, and is a parameter of an export: Audit, src/audit.c.
 */
#ifndef DC_UTIL_H
#define DC_UTIL_H

#include <stddef.h>
#include <stdint.h>

#define container_of_dc(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

/** Memory or abort: with memory gone a server that goes on half-blind is worse than one that
 * restarts, and Ganesha's own allocator aborts too. Free with free(). */
void *dc_zalloc(size_t size);
void *dc_realloc(void *old, size_t size);

/** Like dc_zalloc(), aligned to a cache line of 64 bytes. */
void *dc_zalloc_line(size_t size);

void dc_panic(const char *file, int line, const char *what) __attribute__((noreturn));

#define dc_assert(cond)                                                                            \
	do {                                                                                       \
		if (__builtin_expect(!(cond), 0))                                                  \
			dc_panic(__FILE__, __LINE__, #cond);                                       \
	} while (0)

#ifdef DC_AUDIT
#define dc_audit(cond) dc_assert(cond)
#define dc_held(mutex) dc_assert(pthread_mutex_trylock(mutex) != 0)
#else
#define dc_held(mutex)                                                                             \
	do {                                                                                       \
	} while (0)
#define dc_audit(cond)                                                                             \
	do {                                                                                       \
	} while (0)
#endif

#define DC_CACHE_LINE 64

static inline uint64_t dc_min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static inline uint64_t dc_max_u64(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

#endif
