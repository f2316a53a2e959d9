/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * inline.c: the inline baseline. Preloaded into ganesha.nfsd, it turns each pwritev of stock
 * FSAL_VFS into pwritev2(RWF_DONTCACHE): on kernels before 7.2 the writing thread itself then
 * submits the writeback of what it wrote.
 *
 * A file system that does not know the flag answers EOPNOTSUPP; that goes to the client as it is,
 * because a silent fall back to a buffered write would be measured as something it is not.
 */
#include "preload.h"

#include <sys/types.h>
#include <sys/uio.h>

#ifndef RWF_DONTCACHE
#define RWF_DONTCACHE 0x80
#endif

ssize_t pwritev(int fd, const struct iovec *iov, int n, off_t offset)
{
	preload_mark("inline");
	return pwritev2(fd, iov, n, offset, preload_spares(fd) ? 0 : RWF_DONTCACHE);
}

ssize_t pwritev64(int fd, const struct iovec *iov, int n, off64_t offset)
{
	preload_mark("inline");
	return pwritev2(fd, iov, n, offset, preload_spares(fd) ? 0 : RWF_DONTCACHE);
}
