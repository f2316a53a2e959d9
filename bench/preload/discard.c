/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * discard.c: the ceiling. Preloaded into ganesha.nfsd, it answers each positional write as done
 * and throws the data away, so that what is left is the cost of receiving, decoding and answering
 * WRITEs: no variant can be faster than this server.
 *
 * Reads, truncation and fsync stay real. The file keeps size 0 on disk; NFSv3 replies carry that
 * size, which a load generator does not mind.
 */
#include "preload.h"

#include <sys/types.h>
#include <sys/uio.h>

static ssize_t total(const struct iovec *iov, int n)
{
	ssize_t len = 0;
	for (int i = 0; i < n; i++)
		len += (ssize_t)iov[i].iov_len;
	return len;
}

ssize_t pwrite(int fd, const void *data, size_t len, off_t offset)
{
	(void)fd, (void)data, (void)offset;
	preload_mark("discard");
	return (ssize_t)len;
}

ssize_t pwrite64(int fd, const void *data, size_t len, off64_t offset)
{
	(void)fd, (void)data, (void)offset;
	preload_mark("discard");
	return (ssize_t)len;
}

ssize_t pwritev(int fd, const struct iovec *iov, int n, off_t offset)
{
	(void)fd, (void)offset;
	preload_mark("discard");
	return total(iov, n);
}

ssize_t pwritev64(int fd, const struct iovec *iov, int n, off64_t offset)
{
	(void)fd, (void)offset;
	preload_mark("discard");
	return total(iov, n);
}
