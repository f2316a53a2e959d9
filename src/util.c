/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Allocation that cannot fail, and the end of the road: see util.h. */
#include "util.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void dc_panic(const char *file, int line, const char *what)
{
	fprintf(stderr, "dontcache: %s:%d: assertion failed: %s\n", file, line, what);
	abort();
}

void *dc_zalloc(size_t size)
{
	void *p = calloc(1, size);

	if (!p)
		dc_panic(__FILE__, __LINE__, "out of memory");
	return p;
}

void *dc_realloc(void *old, size_t size)
{
	void *p = realloc(old, size);

	if (!p)
		dc_panic(__FILE__, __LINE__, "out of memory");
	return p;
}

void *dc_zalloc_line(size_t size)
{
	size_t round = (size + DC_CACHE_LINE - 1) & ~(size_t)(DC_CACHE_LINE - 1);
	void *p = aligned_alloc(DC_CACHE_LINE, round);

	if (!p)
		dc_panic(__FILE__, __LINE__, "out of memory");
	return memset(p, 0, round);
}
