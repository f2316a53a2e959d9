/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * verify.c: reads every block back, either through the server or, where the export's folder is at
 * hand, from the file system with O_DIRECT: what is on the device, without filling the page cache
 * that the next run is to find as it was.
 */
#include "load.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHUNK (1u << 20)

struct source {
	int fd;
	bool local;
	struct nfs3_fh fh;
};

static int read_chunk(struct load *load, struct source *from, uint64_t offset, uint32_t len,
		      unsigned char *data)
{
	for (uint32_t done = 0; done < len;) {
		uint32_t got = 0;
		if (from->local) {
			ssize_t n =
				pread(from->fd, data + done, len - done, (off_t)(offset + done));
			if (n < 0) {
				snprintf(load->error, sizeof load->error, "verify: read: %s",
					 strerror(errno));
				return -1;
			}
			got = (uint32_t)n;
		} else if (nfs3_read(from->fd, &from->fh, offset + done, len - done, data + done,
				     &got)) {
			snprintf(load->error, sizeof load->error, "verify: %s", nfs3_error());
			return -1;
		}
		if (!got) {
			snprintf(load->error, sizeof load->error, "verify: the file ends at %llu",
				 (unsigned long long)(offset + done));
			return -1;
		}
		done += got;
	}
	return 0;
}

static bool all_zero(const unsigned char *data, size_t len)
{
	return !data[0] && !memcmp(data, data + 1, len - 1);
}

/* Blocks that touch are read a megabyte at a time, scattered ones one by one. */
static int verify_file(struct load *load, struct source *from, uint32_t file, uint64_t size,
		       unsigned char *data)
{
	const struct options *opt = load->opt;
	uint32_t block = opt->block;
	uint32_t chunk = block >= CHUNK ? block : CHUNK / block * block;
	uint64_t step = load_step(opt), blocks = size / block, held = size;
	struct stat stat;
	if (opt->verify_sparse && from->local && !fstat(from->fd, &stat))
		held = (uint64_t)stat.st_size; /* what lies behind its end was never written */
	uint64_t per_read = step == block ? chunk / block : 1;
	for (uint64_t first = 0; first < blocks; first += per_read) {
		uint64_t n = blocks - first < per_read ? blocks - first : per_read;
		uint64_t offset = first * step;
		if (step == block && offset + n * block > held)
			n = held > offset ? (held - offset) / block : 0;
		if (!n || read_chunk(load, from, offset, (uint32_t)n * block, data))
			return n ? -1 : 0;
		for (uint64_t at = 0; at < n * block; at += block) {
			if (opt->verify_sparse && all_zero(data + at, block))
				continue;
			if (!payload_matches(&load->payload, file, offset + at, data + at)) {
				snprintf(load->error, sizeof load->error,
					 "verify: file %u differs in the block at %llu", file,
					 (unsigned long long)(offset + at));
				return -1;
			}
			load->verified += block;
		}
	}
	return 0;
}

int load_verify(struct load *load)
{
	const struct options *opt = load->opt;
	uint64_t per_file = opt->size / load->file_count;
	void *data = NULL;
	int rc = 0;
	if (posix_memalign(&data, 4096, opt->block > CHUNK ? opt->block : CHUNK))
		return -1;
	for (uint32_t file = 0; file < load->file_count && !rc; file++) {
		struct writer *w = &load->writers[load->file_count > 1 ? file : 0];
		struct source from = { .fd = w->fd, .fh = w->fh };
		if (opt->verify_dir) {
			char name[256], path[4096];
			file_name(opt, file, name);
			snprintf(path, sizeof path, "%s/%s", opt->verify_dir, name);
			from.local = true;
			from.fd = opt->block % 4096 ? -1 :
						      open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
			if (from.fd < 0)
				from.fd = open(path, O_RDONLY | O_CLOEXEC);
			if (from.fd < 0) {
				snprintf(load->error, sizeof load->error, "verify: %.200s: %s",
					 path, strerror(errno));
				rc = -1;
				break;
			}
		}
		rc = verify_file(load, &from, file, per_file, data);
		if (from.local)
			close(from.fd);
	}
	free(data);
	return rc;
}
