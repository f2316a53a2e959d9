/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * A second opinion on the wire: libnfs, a client that shares no code with nfsraw.
 *
 *   nfs_roundtrip URL SIZE CHUNK DEPTH
 *
 * writes SIZE bytes to the file named by URL (libnfs form, e.g. nfs://HOST/export/name?version=3&nfsport=N)
 * as WRITEs of CHUNK bytes with DEPTH of them outstanding, commits (nfs_fsync), reads the file back over
 * a new mount, and compares. The byte at each offset is a function of the offset. Exit code 0: equal.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <nfsc/libnfs.h>

struct load {
	struct nfs_context *nfs;
	struct nfsfh *file;
	uint64_t size, next, done;
	size_t chunk;
	int outstanding, depth;
	int error;
};

struct piece {
	struct load *load;
	size_t length;
	unsigned char data[];
};

/* No power of two divides the pattern's period, so a piece at a wrong page or chunk never fits. */
static unsigned char pattern(uint64_t offset)
{
	return (unsigned char)(offset * 31 / 1021 + offset % 251);
}

static int die(struct nfs_context *nfs, const char *what)
{
	fprintf(stderr, "%s: %s\n", what, nfs ? nfs_get_error(nfs) : "out of memory");
	return 1;
}

static struct nfs_context *mount_url(const char *text, struct nfs_url **url)
{
	struct nfs_context *nfs = nfs_init_context();

	if (nfs == NULL)
		return NULL;
	*url = nfs_parse_url_full(nfs, text);
	if (*url == NULL || nfs_mount(nfs, (*url)->server, (*url)->path) < 0) {
		die(nfs, text);
		if (*url)
			nfs_destroy_url(*url);
		nfs_destroy_context(nfs);
		return NULL;
	}
	return nfs;
}

static void unmount(struct nfs_context *nfs, struct nfs_url *url)
{
	nfs_destroy_url(url);
	nfs_destroy_context(nfs);
}

static void written(int result, struct nfs_context *nfs, void *data, void *opaque)
{
	struct piece *piece = opaque;
	struct load *load = piece->load;

	(void)nfs;
	load->outstanding--;
	if (result < 0) {
		fprintf(stderr, "write: %s (%d)\n", data ? (const char *)data : "", result);
		load->error = 1;
	} else if ((size_t)result != piece->length) {
		fprintf(stderr, "short write: %d of %zu\n", result, piece->length);
		load->error = 1;
	} else {
		load->done += (uint64_t)result;
	}
	free(piece);
}

static int start_one(struct load *load)
{
	size_t length = load->chunk;
	struct piece *piece;

	if (load->size - load->next < length)
		length = (size_t)(load->size - load->next);
	piece = malloc(sizeof(*piece) + length);
	if (piece == NULL)
		return die(NULL, "write");
	piece->load = load;
	piece->length = length;
	for (size_t i = 0; i < length; i++)
		piece->data[i] = pattern(load->next + i);
	if (nfs_pwrite_async(load->nfs, load->file, load->next, length, piece->data, written,
			     piece) < 0) {
		free(piece);
		return die(load->nfs, "write");
	}
	load->outstanding++;
	load->next += length;
	return 0;
}

static int write_all(struct load *load)
{
	while (load->outstanding > 0 || (load->next < load->size && !load->error)) {
		struct pollfd fd;

		while (!load->error && load->next < load->size && load->outstanding < load->depth)
			if (start_one(load))
				return 1;
		fd.fd = nfs_get_fd(load->nfs);
		fd.events = (short)nfs_which_events(load->nfs);
		fd.revents = 0;
		if (poll(&fd, 1, 60000) == 0) {
			fprintf(stderr, "no reply for 60 s\n");
			return 1;
		}
		if (nfs_service(load->nfs, fd.revents) < 0)
			return die(load->nfs, "service");
	}
	return load->error;
}

static int write_file(const char *text, uint64_t size, size_t chunk, int depth)
{
	struct load load = { .size = size, .chunk = chunk, .depth = depth };
	struct nfs_url *url = NULL;
	int failed = 1;

	load.nfs = mount_url(text, &url);
	if (load.nfs == NULL)
		return 1;
	if (nfs_creat(load.nfs, url->file, 0644, &load.file) < 0) {
		die(load.nfs, "create");
	} else {
		failed = write_all(&load);
		if (!failed && nfs_fsync(load.nfs, load.file) < 0)
			failed = die(load.nfs, "fsync");
		nfs_close(load.nfs, load.file);
	}
	unmount(load.nfs, url);
	return failed;
}

static int compare_all(struct nfs_context *nfs, struct nfsfh *file, uint64_t size, size_t chunk)
{
	char *buffer = malloc(chunk);
	uint64_t offset = 0;
	int failed = 0;

	if (buffer == NULL)
		return die(NULL, "read");
	while (!failed) {
		int got = nfs_pread(nfs, file, offset, chunk, buffer);

		if (got < 0)
			failed = die(nfs, "read");
		if (got <= 0)
			break;
		for (int i = 0; i < got && !failed; i++)
			if ((unsigned char)buffer[i] != pattern(offset + (uint64_t)i)) {
				fprintf(stderr, "differs at offset %llu\n",
					(unsigned long long)offset + (unsigned)i);
				failed = 1;
			}
		offset += (uint64_t)got;
	}
	free(buffer);
	if (!failed && offset != size) {
		fprintf(stderr, "%llu bytes read, %llu written\n", (unsigned long long)offset,
			(unsigned long long)size);
		failed = 1;
	}
	return failed;
}

static int read_file(const char *text, uint64_t size, size_t chunk)
{
	struct nfs_url *url = NULL;
	struct nfs_context *nfs = mount_url(text, &url);
	struct nfsfh *file;
	int failed;

	if (nfs == NULL)
		return 1;
	if (nfs_open(nfs, url->file, O_RDONLY, &file) < 0) {
		failed = die(nfs, "open");
	} else {
		failed = compare_all(nfs, file, size, chunk);
		nfs_close(nfs, file);
	}
	unmount(nfs, url);
	return failed;
}

static uint64_t number(const char *text)
{
	char *end;
	uint64_t value;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno || *end || end == text) {
		fprintf(stderr, "not a number: %s\n", text);
		exit(2);
	}
	return value;
}

int main(int argc, char **argv)
{
	uint64_t size, chunk, depth;

	if (argc != 5) {
		fprintf(stderr, "usage: %s URL SIZE CHUNK DEPTH\n", argv[0]);
		return 2;
	}
	size = number(argv[2]);
	chunk = number(argv[3]);
	depth = number(argv[4]);
	if (chunk == 0 || chunk > (16 << 20) || depth == 0 || depth > 1024) {
		fprintf(stderr, "chunk: 1 to 16 MiB; depth: 1 to 1024\n");
		return 2;
	}
	if (write_file(argv[1], size, (size_t)chunk, (int)depth))
		return 1;
	return read_file(argv[1], size, (size_t)chunk);
}
