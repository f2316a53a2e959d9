/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* The flusher's operations as plain system calls in the caller's thread; shared by the backends. */
#ifndef DC_BACKEND_PLAIN_H
#define DC_BACKEND_PLAIN_H

#include <stdint.h>

struct dc_backend;
struct dc_cachestat;

/* All three sync_file_range(2) flags: only together do they write pages that were dirtied again
 * while under writeback, instead of skipping them. */
#define DC_STRICT (SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER)
#define DC_START SYNC_FILE_RANGE_WRITE
#define DC_WAIT SYNC_FILE_RANGE_WAIT_BEFORE

int dc_plain_sync(struct dc_backend *be, int fd);
int dc_plain_writeback(struct dc_backend *be, int fd, uint64_t offset, uint64_t len);
void dc_plain_drop(struct dc_backend *be, int fd, uint64_t offset, uint64_t len);
int dc_plain_cachestat(struct dc_backend *be, int fd, uint64_t offset, uint64_t len,
		       struct dc_cachestat *st);
int dc_plain_error(struct dc_backend *be, int fd);
int dc_plain_reopen(struct dc_backend *be, int fd);

#endif
