/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Preload for ganesha.nfsd: open FSALs without RTLD_DEEPBIND.
 *
 * Ganesha opens its FSALs with that flag, which hides preloaded functions from them, and which
 * the sanitizers' runtimes refuse.
 */
#define _GNU_SOURCE
#include <dlfcn.h>

void *dlopen(const char *file, int mode)
{
	static void *(*real)(const char *, int);

	if (!real)
		real = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
	return real(file, mode & ~RTLD_DEEPBIND);
}
