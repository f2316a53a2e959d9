/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * load.h: the load as a set of writers, each a connection of its own with `depth` WRITEs in flight
 * on one file, all driven by one poll loop. A writer that has sent its share and seen every reply
 * COMMITs its file, as a client does at close().
 */
#ifndef BENCH_LOAD_LOAD_H
#define BENCH_LOAD_LOAD_H

#include <signal.h>

#include "histogram.h"
#include "nfs3.h"
#include "payload.h"

enum layout {
	LAYOUT_DISTINCT, /* each writer its own file */
	LAYOUT_STREAM, /* one file; each next block on whichever connection is free, as with nconnect */
	LAYOUT_REGIONS, /* one file; each writer its own contiguous part */
	LAYOUT_SAME, /* one file; every writer writes all of it: the form of the original nfsd benchmark */
};

struct options {
	struct nfs3_server server;
	const char *export_path, *prefix;
	char **sources; /* addresses to connect from, dealt out round robin */
	unsigned source_count;
	unsigned writers, depth;
	uint32_t block;
	uint64_t size; /* over all writers */
	enum layout layout;
	bool random, overwrite, commit, verify_nfs;
	bool commit_only, verify_only; /* nothing is written: somebody else did */
	bool read;		       /* READs in the place of WRITEs, and no COMMIT */
	uint32_t stable;	       /* of each WRITE: enum nfs3_stable */
	bool commit_each;	       /* each WRITE is followed by a COMMIT of its block */
	uint64_t stride;	       /* from one block to the next; 0: they touch */
	bool verify_sparse;	       /* blocks of zeros were never written */
	const char *verify_dir;	       /* read back from this folder instead */
	double seconds; /* run that long, wrapping at the end of the file; 0: until size is written */
	double stall_seconds; /* give up after so long without any reply */
	uint64_t seed;
};

enum slot_state { SLOT_FREE, SLOT_QUEUED, SLOT_SENT, SLOT_DELAYED };

struct slot {
	unsigned char header[NFS3_HEADER_MAX + PAYLOAD_STAMP];
	uint32_t header_len;
	size_t payload_at; /* rest of the request, in the payload's pool */
	uint32_t payload_len;
	uint32_t xid;
	uint64_t offset; /* of the block */
	bool committing; /* commit_each: the WRITE is done, its COMMIT is under way */
	uint32_t done; /* bytes of it that the server took already: a short WRITE goes on from there */
	int64_t issued_ns, retry_ns;
	enum slot_state state;
};

struct writer {
	unsigned index;
	int fd;
	uint32_t file; /* number of the file it writes; part of each block's stamp */
	struct nfs3_fh fh;
	struct slot *slots; /* depth of them, and one for the COMMIT */
	uint16_t *queue;    /* slots whose request is not sent completely, a ring of depth + 1 */
	unsigned queue_head, queue_len;
	size_t head_sent; /* bytes of the request at the head that are out */
	unsigned in_flight;
	uint64_t first_block, blocks,
		next;	 /* blocks of this writer, and how many of them were issued */
	uint32_t *order; /* random: the order of its blocks */
	uint64_t bytes;
	uint64_t verifier;
	bool has_verifier, wants_output, finished;
	int64_t last_write_ns, finished_ns, commit_ns;
	uint32_t sequence; /* makes xids of one connection differ */
	unsigned char *rx;
	size_t rx_size, rx_len;
};

struct load {
	const struct options *opt;
	struct payload payload;
	struct writer *writers;
	unsigned file_count;
	uint64_t stream_next; /* LAYOUT_STREAM: the block that goes out next */
	uint64_t stream_blocks;
	unsigned delayed, running;
	int64_t start_ns, end_ns, last_write_ns, last_reply_ns;
	uint64_t bytes, verified;
	uint64_t jukebox, short_writes;
	struct histogram latency;
	uint64_t *timeline; /* bytes acknowledged in each 100 ms */
	size_t timeline_len;
	char error[320];
};

#define TIMELINE_MS 100

extern volatile sig_atomic_t load_stop; /* set: a run by --seconds ends now */

/* From one block's offset to the next one's. */
static inline uint64_t load_step(const struct options *opt)
{
	return opt->stride ? opt->stride : opt->block;
}

void file_name(const struct options *opt, uint32_t file, char name[256]);
int64_t now_ns(void);
/* Writes until done; -1 leaves a reason in load->error. */
int load_run(struct load *load);
/* Reads every block back; -1 leaves a reason in load->error. */
int load_verify(struct load *load);

#endif
