/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* The flusher's operations as plain system calls in the caller's thread. */
#define _GNU_SOURCE
#include "backend_plain.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "dontcache/backend.h"

int dc_plain_sync(struct dc_backend *be, int fd)
{
	(void)be;
	return fdatasync(fd) < 0 ? -errno : 0;
}

int dc_plain_writeback(struct dc_backend *be, int fd, uint64_t offset, uint64_t len)
{
	(void)be;
	return sync_file_range(fd, (off64_t)offset, (off64_t)len, DC_STRICT) < 0 ? -errno : 0;
}

void dc_plain_drop(struct dc_backend *be, int fd, uint64_t offset, uint64_t len)
{
	(void)be;
	posix_fadvise(fd, (off_t)offset, (off_t)len, POSIX_FADV_DONTNEED);
}

/* cachestat(2) came with Linux 6.5; Debian 12's headers do not know it. The layouts are the
 * kernel's (include/uapi/linux/mman.h). */
#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif

int dc_plain_cachestat(struct dc_backend *be, int fd, uint64_t offset, uint64_t len,
		       struct dc_cachestat *st)
{
	uint64_t range[2] = { offset, len };
	struct {
		uint64_t cache, dirty, writeback, evicted, recently_evicted;
	} cs;

	(void)be;
	/* It counts the kernel's pages; we count 4 KiB. */
	if (sysconf(_SC_PAGESIZE) != 4096)
		return -ENOSYS;
	if (syscall(SYS_cachestat, fd, range, &cs, 0) < 0)
		return -errno;
	st->cached = cs.cache;
	st->dirty = cs.dirty;
	st->writeback = cs.writeback;
	return 0;
}

/* Waiting for the writeback of a range that no file reaches: nothing to wait for, but the kernel
 * answers with the descriptor's error all the same. */
int dc_plain_error(struct dc_backend *be, int fd)
{
	(void)be;
	return sync_file_range(fd, INT64_MAX - 4096, 1, DC_WAIT) < 0 ? -errno : 0;
}

int dc_plain_reopen(struct dc_backend *be, int fd)
{
	char path[32];
	int fresh;

	(void)be;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	fresh = open(path, O_RDONLY | O_CLOEXEC | O_NOATIME | O_NONBLOCK);
	return fresh < 0 ? -errno : fresh;
}
