/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * preload.h: what the benchmark's preloads share: reaching the FSAL at all, and proving that they
 * did.
 *
 * Ganesha loads FSALs with RTLD_DEEPBIND, which makes them bind to libc before any preload. A
 * whole table was once measured without effect because of that. So dlopen loses the flag here, and
 * the first call that a preload intercepts creates the file named by BENCH_PRELOAD_MARK, with the
 * preload's name and the caller's object in it; the benchmark refuses a run whose mark is missing.
 */
#ifndef BENCH_PRELOAD_H
#define BENCH_PRELOAD_H

#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void *dlopen(const char *file, int flags)
{
	static void *(*next)(const char *, int);
	if (!next)
		next = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
	return next(file, flags & ~RTLD_DEEPBIND);
}

static void preload_mark_once(const char *name, const void *caller)
{
	const char *path = getenv("BENCH_PRELOAD_MARK");
	Dl_info info = { 0 };
	if (!path)
		return;
	int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	if (fd < 0)
		return;
	dladdr(caller, &info);
	dprintf(fd, "%s %s\n", name, info.dli_fname ? info.dli_fname : "?");
	close(fd);
}

/* Whether a file lies below BENCH_PRELOAD_SPARE, the folder of an export that is to be left as it
 * is. Where the variable is not set this costs a comparison; else a readlink(2) for each write. */
static inline bool preload_spares(int fd)
{
	static const char *spare = "";
	static atomic_bool known;
	char link[64], path[1024];
	if (!atomic_load_explicit(&known, memory_order_acquire)) {
		spare = getenv("BENCH_PRELOAD_SPARE");
		atomic_store_explicit(&known, true, memory_order_release);
	}
	if (!spare)
		return false;
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t len = readlink(link, path, sizeof path - 1);
	size_t spare_len = strlen(spare);
	return len > 0 && (size_t)len >= spare_len && !memcmp(path, spare, spare_len);
}

/* The benchmark looks for the FSAL's name beside the preload's: the server itself may write
 * files in other ways. */
#define preload_mark(name)                                                                         \
	do {                                                                                       \
		static atomic_bool marked;                                                         \
		if (!atomic_load_explicit(&marked, memory_order_relaxed) &&                        \
		    !atomic_exchange(&marked, true))                                               \
			preload_mark_once(name, __builtin_return_address(0));                      \
	} while (0)

#endif
