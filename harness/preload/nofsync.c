/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Preload for ganesha.nfsd: syncs that lie. They report success and do nothing, or, with
 * NOFSYNC=pages in the environment, write the pages and leave out metadata and the disk's cache.
 *
 * With nodeepbind.so before it, so that it reaches the FSALs too. A crash test that passes with
 * such a server proves nothing.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int lie(int fd)
{
	const char *how = getenv("NOFSYNC");

	if (how && !strcmp(how, "pages"))
		return sync_file_range(fd, 0, 0,
				       SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
					       SYNC_FILE_RANGE_WAIT_AFTER);
	return 0;
}

int fsync(int fd)
{
	return lie(fd);
}

int fdatasync(int fd)
{
	return lie(fd);
}
