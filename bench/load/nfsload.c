/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * nfsload: N clients that write to an NFSv3 server and COMMIT, or read, measured; one JSON object on
 * standard output.
 *
 * fio's nfs engine is the reference for pure throughput, but it cannot COMMIT, loses the last
 * requests of a job, cannot verify, and costs the client's core more than the server's work in
 * some loads. This program does the one thing that the benchmark needs, as cheaply as it can be
 * done.
 */
#include "load.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

static const char usage_text[] =
	"nfsload --port PORT --mount-port PORT [options]\n"
	"  --host ADDRESS      server, IPv4 (127.0.0.1)\n"
	"  --export PATH       what to mount (/export)\n"
	"  --prefix NAME       files are NAME.0, NAME.1, ... (load)\n"
	"  --writers N         connections (1)\n"
	"  --layout distinct | stream | regions | same\n"
	"                      each writer its own file | one file, next block to whichever\n"
	"                      connection is free | one file, a part each | one file, all of it by each\n"
	"  --block BYTES       size of a WRITE, K and M accepted (1M)\n"
	"  --depth N           WRITEs in flight per connection (16)\n"
	"  --size BYTES        data over all writers, K, M, G accepted (1G)\n"
	"  --seconds S         run so long, or until SIGTERM, wrapping at the end of the file\n"
	"  --random            blocks in random order, each once\n"
	"  --overwrite         keep what the files hold (default: truncate them first)\n"
	"  --stable HOW        of each WRITE: unstable, data or file (unstable)\n"
	"  --commit-each       a COMMIT of its block after each WRITE; latencies are of both\n"
	"  --read              READs of what the files hold; nothing is written\n"
	"  --stride BYTES      blocks so far apart, holes between them: scattered overwrites\n"
	"  --no-commit         leave out the COMMIT at the end of each writer\n"
	"  --commit-only       write nothing, COMMIT what the files hold\n"
	"  --verify-only       write nothing, read back what a run with the same options wrote\n"
	"  --verify            read everything back through the server\n"
	"  --verify-dir DIR    read everything back from DIR, the exported folder\n"
	"  --verify-sparse     while verifying, take blocks of zeros for never written\n"
	"  --source A[,B...]   addresses to connect from, dealt out to the writers in turn\n"
	"  --seed N            of the data and the random order (1)\n"
	"  --stall S           give up after so long without a reply (120)\n";

static void die(const char *what)
{
	fprintf(stderr, "nfsload: %s\n", what);
	exit(2);
}

static uint64_t parse_size(const char *text, const char *option)
{
	char *end;
	errno = 0;
	uint64_t value = strtoull(text, &end, 10);
	unsigned shift = 0;
	if (*end == 'K' || *end == 'k')
		shift = 10;
	else if (*end == 'M' || *end == 'm')
		shift = 20;
	else if (*end == 'G' || *end == 'g')
		shift = 30;
	if (shift)
		end++;
	if (errno || *end || !value || value > UINT64_MAX >> (shift + 1)) {
		fprintf(stderr, "nfsload: --%s: '%s' is not a size\n", option, text);
		exit(2);
	}
	return value << shift;
}

static unsigned parse_count(const char *text, unsigned max, const char *option)
{
	uint64_t value = parse_size(text, option);
	if (value > max) {
		fprintf(stderr, "nfsload: --%s: at most %u\n", option, max);
		exit(2);
	}
	return (unsigned)value;
}

static void parse_sources(struct options *opt, char *text)
{
	for (char *part = strtok(text, ","); part; part = strtok(NULL, ",")) {
		opt->sources =
			realloc(opt->sources, (opt->source_count + 1) * sizeof *opt->sources);
		if (!opt->sources)
			die("out of memory");
		opt->sources[opt->source_count++] = part;
	}
}

static enum layout parse_layout(const char *text)
{
	static const char *const names[] = { "distinct", "stream", "regions", "same" };
	for (unsigned i = 0; i < 4; i++)
		if (!strcmp(text, names[i]))
			return (enum layout)i;
	die("--layout: distinct, stream, regions or same");
	return LAYOUT_DISTINCT;
}

static enum nfs3_stable parse_stable(const char *text)
{
	static const char *const names[] = { "unstable", "data", "file" };
	for (unsigned i = 0; i < 3; i++)
		if (!strcmp(text, names[i]))
			return (enum nfs3_stable)i;
	die("--stable: unstable, data or file");
	return NFS3_UNSTABLE;
}

enum kind { FLAG, NO_FLAG, TEXT, COUNT, SIZE, NUMBER };

struct argument {
	const char *name;
	enum kind kind;
	void *target;
	unsigned max; /* of a COUNT */
};

static void assign(const struct argument *a, char *text)
{
	char *end = text;
	switch (a->kind) {
	case FLAG:
		*(bool *)a->target = true;
		return;
	case NO_FLAG:
		*(bool *)a->target = false;
		return;
	case TEXT:
		*(char **)a->target = text;
		return;
	case COUNT:
		*(unsigned *)a->target = parse_count(text, a->max, a->name);
		return;
	case SIZE:
		*(uint64_t *)a->target = parse_size(text, a->name);
		return;
	case NUMBER:
		*(double *)a->target = strtod(text, &end);
		if (end == text || *end)
			die("--seconds and --stall want a number");
	}
}

static void parse_options(struct options *opt, int argc, char **argv)
{
	char *layout = NULL, *sources = NULL, *stable = NULL;
	unsigned port = 0, mount_port = 0;
	const struct argument arguments[] = {
		{ "host", TEXT, &opt->server.host, 0 },
		{ "port", COUNT, &port, 65535 },
		{ "mount-port", COUNT, &mount_port, 65535 },
		{ "export", TEXT, &opt->export_path, 0 },
		{ "prefix", TEXT, &opt->prefix, 0 },
		{ "writers", COUNT, &opt->writers, 4096 },
		{ "layout", TEXT, &layout, 0 },
		{ "block", COUNT, &opt->block, 64u << 20 },
		{ "depth", COUNT, &opt->depth, 1024 },
		{ "size", SIZE, &opt->size, 0 },
		{ "seconds", NUMBER, &opt->seconds, 0 },
		{ "random", FLAG, &opt->random, 0 },
		{ "overwrite", FLAG, &opt->overwrite, 0 },
		{ "no-commit", NO_FLAG, &opt->commit, 0 },
		{ "commit-only", FLAG, &opt->commit_only, 0 },
		{ "verify-only", FLAG, &opt->verify_only, 0 },
		{ "verify", FLAG, &opt->verify_nfs, 0 },
		{ "verify-dir", TEXT, &opt->verify_dir, 0 },
		{ "source", TEXT, &sources, 0 },
		{ "stable", TEXT, &stable, 0 },
		{ "commit-each", FLAG, &opt->commit_each, 0 },
		{ "read", FLAG, &opt->read, 0 },
		{ "stride", SIZE, &opt->stride, 0 },
		{ "verify-sparse", FLAG, &opt->verify_sparse, 0 },
		{ "seed", SIZE, &opt->seed, 0 },
		{ "stall", NUMBER, &opt->stall_seconds, 0 },
	};
	for (int i = 1; i < argc; i++) {
		const struct argument *a = NULL;
		if (!strcmp(argv[i], "--help")) {
			fputs(usage_text, stdout);
			exit(0);
		}
		for (size_t k = 0; k < sizeof arguments / sizeof *arguments; k++)
			if (!strncmp(argv[i], "--", 2) && !strcmp(argv[i] + 2, arguments[k].name))
				a = &arguments[k];
		bool alone = a && (a->kind == FLAG || a->kind == NO_FLAG);
		if (!a || (!alone && i + 1 == argc)) {
			fprintf(stderr, "nfsload: %s: %s\n", argv[i],
				a ? "wants a value" : "unknown; see --help");
			exit(2);
		}
		assign(a, alone ? NULL : argv[++i]);
	}
	/* What is in a local folder is verified without any server. */
	if ((!port || !mount_port) && !(opt->verify_only && opt->verify_dir))
		die("--port and --mount-port are needed; see --help");
	opt->server.port = (uint16_t)port;
	opt->server.mount_port = (uint16_t)mount_port;
	if (layout)
		opt->layout = parse_layout(layout);
	if (sources)
		parse_sources(opt, sources);
	if (stable)
		opt->stable = parse_stable(stable);
	if (opt->stride && opt->stride < opt->block)
		die("--stride: at least --block");
	if (opt->read) {
		opt->overwrite = true;
		opt->commit = opt->commit_each = false;
	}
	if (opt->block <= PAYLOAD_STAMP)
		die("--block: at least 64 bytes");
	if (opt->random && opt->layout == LAYOUT_STREAM)
		die("--random needs another --layout than stream");
	if (opt->verify_only && !opt->verify_dir)
		opt->verify_nfs = true;
	if (opt->seconds > 0 && (opt->verify_nfs || opt->verify_dir) && !opt->verify_sparse)
		die("--verify needs --size, or --verify-sparse");
}

void file_name(const struct options *opt, uint32_t file, char name[256])
{
	snprintf(name, 256, "%s.%u", opt->prefix, file);
}

/* The size each file gets is a whole number of blocks, so that every block is a full one and
 * --verify can read all. */
static void share_out(struct load *load, struct options *opt)
{
	bool whole_each = opt->layout == LAYOUT_SAME, whole_file = opt->layout == LAYOUT_STREAM;
	uint64_t blocks = opt->size / opt->block;
	uint64_t per_writer = whole_file ? blocks : blocks / opt->writers;
	if (!per_writer)
		die("--size: less than a block per writer");
	load->file_count = opt->layout == LAYOUT_DISTINCT ? opt->writers : 1;
	load->stream_blocks = per_writer;
	opt->size = per_writer * opt->block * (whole_each || whole_file ? 1 : opt->writers);
	for (unsigned i = 0; i < opt->writers; i++) {
		struct writer *w = &load->writers[i];
		w->index = i;
		w->file = load->file_count > 1 ? i : 0;
		w->blocks = per_writer;
		w->first_block = opt->layout == LAYOUT_REGIONS ? i * per_writer : 0;
	}
}

static void shuffle(struct writer *w, uint64_t seed)
{
	w->order = malloc(w->blocks * sizeof *w->order);
	if (!w->order)
		die("out of memory");
	uint64_t state = seed * 0x9e3779b97f4a7c15u + w->index + 1;
	for (uint64_t i = 0; i < w->blocks; i++) {
		state ^= state << 13; /* xorshift64 */
		state ^= state >> 7;
		state ^= state << 17;
		uint64_t other = state % (i + 1);
		w->order[i] = w->order[other];
		w->order[other] = (uint32_t)i;
	}
}

static void prepare(struct load *load, struct options *opt)
{
	load->writers = calloc(opt->writers, sizeof *load->writers);
	if (!load->writers)
		die("out of memory");
	share_out(load, opt);
	if (payload_init(&load->payload, opt->seed, opt->block))
		die("no memory for the payload");
}

static void connect_writers(struct load *load, const struct options *opt)
{
	struct nfs3_fh root;
	uint32_t write_max;
	char name[256];
	bool keep = opt->overwrite || opt->commit_only || opt->verify_only;
	if (nfs3_mount(&opt->server, opt->export_path, &root))
		die(nfs3_error());
	for (unsigned i = 0; i < opt->writers; i++) {
		struct writer *w = &load->writers[i];
		struct nfs3_server server = opt->server;
		server.source = opt->source_count ? opt->sources[i % opt->source_count] : NULL;
		w->fd = nfs3_connect(&server, server.port);
		if (w->fd < 0 || (i == 0 && nfs3_write_max(w->fd, &root, &write_max)))
			die(nfs3_error());
		if (opt->block > write_max) {
			fprintf(stderr, "nfsload: --block: the server takes %u bytes at most\n",
				write_max);
			exit(2);
		}
		file_name(opt, w->file, name);
		bool first_of_file = load->file_count > 1 || i == 0;
		if (nfs3_create(w->fd, &root, name, first_of_file && !keep, &w->fh))
			die(nfs3_error());
		w->slots = calloc(opt->depth + 1, sizeof *w->slots);
		w->queue = calloc(opt->depth + 1, sizeof *w->queue);
		/* A READ's reply is as long as its data, and two may arrive together. */
		w->rx_size = 16384 + (opt->read ? 2 * (size_t)opt->block : 0);
		w->rx = malloc(w->rx_size);
		if (!w->slots || !w->queue || !w->rx)
			die("out of memory");
		if (opt->random)
			shuffle(w, opt->seed);
	}
}

/* ---- the report ---- */

static double seconds(int64_t ns)
{
	return (double)ns / 1e9;
}

static void print_latency(const struct histogram *h)
{
	static const double percents[] = { 50, 90, 99, 99.9, 99.99 };
	static const char *const names[] = { "p50", "p90", "p99", "p999", "p9999" };
	printf(" \"lat_us\": {\"mean\": %.1f", h->count ? (double)h->sum / (double)h->count : 0.0);
	for (unsigned i = 0; i < 5; i++)
		printf(", \"%s\": %llu", names[i],
		       (unsigned long long)histogram_percentile(h, percents[i]));
	printf(", \"max\": %llu},\n \"histogram_us\": [", (unsigned long long)h->max);
	const char *comma = "";
	for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++)
		if (h->bucket[i]) {
			printf("%s[%llu,%u]", comma, (unsigned long long)histogram_value(i),
			       h->bucket[i]);
			comma = ",";
		}
	printf("],\n");
}

static void print_writers(const struct load *load)
{
	printf(" \"writers\": [");
	for (unsigned i = 0; i < load->opt->writers; i++) {
		const struct writer *w = &load->writers[i];
		double s = seconds(w->finished_ns - load->start_ns);
		uint64_t blocks = w->next < w->blocks ? w->next : w->blocks;
		printf("%s\n  {\"bytes\": %llu, \"blocks\": %llu, \"seconds\": %.4f, "
		       "\"mb_s\": %.2f, \"commit_s\": %.4f}",
		       i ? "," : "", (unsigned long long)w->bytes, (unsigned long long)blocks, s,
		       s > 0 ? (double)w->bytes / 1e6 / s : 0.0, seconds(w->commit_ns));
	}
	printf("],\n");
}

static void print_report(const struct load *load, const struct rusage *cpu, bool failed)
{
	double total = seconds(load->end_ns - load->start_ns);
	int64_t commit_max = 0;
	for (unsigned i = 0; i < load->opt->writers; i++)
		if (load->writers[i].commit_ns > commit_max)
			commit_max = load->writers[i].commit_ns;
	double user = (double)cpu->ru_utime.tv_sec + (double)cpu->ru_utime.tv_usec / 1e6;
	double system = (double)cpu->ru_stime.tv_sec + (double)cpu->ru_stime.tv_usec / 1e6;
	printf("{\"ok\": %s, \"bytes\": %llu, \"seconds\": %.4f, \"write_seconds\": %.4f,\n",
	       failed ? "false" : "true", (unsigned long long)load->bytes, total,
	       seconds(load->last_write_ns - load->start_ns));
	printf(" \"start_ns\": %lld,\n", (long long)load->start_ns);
	printf(" \"mb_s\": %.2f, \"iops\": %.1f,\n",
	       total > 0 ? (double)load->bytes / 1e6 / total : 0.0,
	       total > 0 ? (double)load->latency.count / total : 0.0);
	printf(" \"commit_s\": %.4f, \"commit_tail_s\": %.4f,\n", seconds(commit_max),
	       seconds(load->end_ns - load->last_write_ns));
	printf(" \"client_cpu_s\": {\"user\": %.3f, \"system\": %.3f},\n"
	       " \"jukebox\": %llu, \"short_writes\": %llu, \"verified\": %llu,\n",
	       user, system, (unsigned long long)load->jukebox,
	       (unsigned long long)load->short_writes, (unsigned long long)load->verified);
	print_latency(&load->latency);
	print_writers(load);
	printf(" \"timeline\": {\"ms\": %d, \"mb\": [", TIMELINE_MS);
	size_t ticks = (size_t)((load->end_ns - load->start_ns) / (TIMELINE_MS * 1000000)) + 1;
	for (size_t i = 0; i < ticks && i < load->timeline_len; i++)
		printf("%s%.2f", i ? "," : "", (double)load->timeline[i] / 1e6);
	printf("]}}\n");
}

static void stop(int number)
{
	(void)number;
	load_stop = 1;
}

int main(int argc, char **argv)
{
	struct options opt = { .server = { .host = "127.0.0.1" },
			       .export_path = "/export",
			       .prefix = "load",
			       .writers = 1,
			       .depth = 16,
			       .block = 1u << 20,
			       .size = 1u << 30,
			       .commit = true,
			       .stall_seconds = 120,
			       .seed = 1 };
	struct load load = { .opt = &opt };
	struct rusage before, after;
	parse_options(&opt, argc, argv);
	signal(SIGPIPE, SIG_IGN);
	if (opt.seconds > 0)
		signal(SIGTERM, stop);
	prepare(&load, &opt);
	bool local = opt.verify_only && opt.verify_dir;
	if (!local)
		connect_writers(&load, &opt);
	getrusage(RUSAGE_SELF, &before);
	bool failed = !opt.verify_only && load_run(&load) != 0;
	if (failed)
		load.end_ns = now_ns();
	getrusage(RUSAGE_SELF, &after);
	timersub(&after.ru_utime, &before.ru_utime, &after.ru_utime);
	timersub(&after.ru_stime, &before.ru_stime, &after.ru_stime);
	if (!failed && (opt.verify_nfs || opt.verify_dir))
		failed = load_verify(&load) != 0;
	print_report(&load, &after, failed);
	if (failed)
		fprintf(stderr, "nfsload: %s\n", load.error);
	return failed;
}
