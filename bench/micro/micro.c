/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * What the engine costs by itself: a write's admission and record, the choice of what to flush, and
 * the memory of the dirty map. The device completes everything at once and does nothing.
 *
 *     micro [--json] [--quick]
 *
 * Times are the best of several rounds: what disturbs a round on a shared machine only ever adds.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

#define KiB (1ULL << 10)
#define MiB (1ULL << 20)
#define GiB (1ULL << 30)
#define TiB (1ULL << 40)

static bool json, quick;
static unsigned int nr_results;

static void result(const char *name, double value, const char *unit)
{
	if (json)
		printf("%s\n    { \"name\": \"%s\", \"value\": %.4g, \"unit\": \"%s\" }",
		       nr_results ? "," : "", name, value, unit);
	else
		printf("  %-58s %10.4g %s\n", name, value, unit);
	nr_results++;
	fflush(stdout);
}

static void heading(const char *text)
{
	if (!json)
		printf("%s\n", text);
}

static uint64_t now_ns(void *host)
{
	struct timespec ts;

	(void)host;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * DC_NS_PER_S + (uint64_t)ts.tv_nsec;
}

static const struct dc_host_ops host_ops = { now_ns, NULL, NULL };

static uint64_t rnd(uint64_t *s)
{
	*s ^= *s >> 12;
	*s ^= *s << 25;
	*s ^= *s >> 27;
	return *s * 0x2545f4914f6cdd1dULL >> 16;
}

/* ---- a device that completes everything at once ---- */

struct null {
	struct dc_backend be;
	struct dc_op *done;
};

static void null_submit(struct dc_backend *be, struct dc_op *op)
{
	struct null *n = (struct null *)be;

	op->res = 0;
	op->next = n->done;
	n->done = op;
}

static struct dc_op *null_wait(struct dc_backend *be, int64_t timeout_ns)
{
	struct null *n = (struct null *)be;
	struct dc_op *done = n->done;

	(void)timeout_ns;
	n->done = NULL;
	return done;
}

static void null_wake(struct dc_backend *be)
{
	(void)be;
}

static int null_sync(struct dc_backend *be, int fd)
{
	(void)be;
	(void)fd;
	return 0;
}

static int null_writeback(struct dc_backend *be, int fd, uint64_t offset, uint64_t len)
{
	(void)be;
	(void)fd;
	(void)offset;
	(void)len;
	return 0;
}

static void null_drop(struct dc_backend *be, int fd, uint64_t offset, uint64_t len)
{
	(void)null_writeback(be, fd, offset, len);
}

static void null_free(struct dc_backend *be)
{
	free(be);
}

static const struct dc_backend_ops null_ops = {
	.name = "null",
	.submit = null_submit,
	.wait = null_wait,
	.wake = null_wake,
	.sync = null_sync,
	.writeback = null_writeback,
	.drop = null_drop,
	.free = null_free,
};

static struct dc_backend *null_make(int *err)
{
	struct null *n = dc_zalloc(sizeof(*n));

	*err = 0;
	n->be.ops = &null_ops;
	return &n->be;
}

/* ---- an engine ---- */

static struct dc_engine *eng;
static struct dc_device *dev;
static struct dc_export *ex;
static char path[96];
static int fd;

static void engine_new(struct dc_backend *(*make)(int *err))
{
	struct dc_engine_options eo = { .max_open_files = UINT32_MAX };
	struct dc_params p;
	int err;

	eng = dc_engine_new(&host_ops, NULL, &eo);
	dev = dc_device_get(eng, 1, make, &err);
	dc_params_defaults(&p);
	p.dirty_bytes = 16 * TiB;
	p.dirty_background_bytes = 15 * TiB;
	ex = dc_export_new(dev, 1, "/micro", &p);
}

static void engine_free(void)
{
	dc_export_free(ex, 60 * DC_NS_PER_S);
	dc_engine_free(eng);
}

static struct dc_file *new_file(unsigned int nr)
{
	struct dc_file *file = dc_file_get(ex, &nr, sizeof(nr));

	dc_file_set_fd(file, dup(fd));
	return file;
}

/* ---- a write ---- */

struct load {
	const char *name;
	uint64_t size, span;
	bool random;
};

static const struct load loads[] = {
	{ "1 MiB sequential", 1 * MiB, 256 * GiB, false },
	{ "64 KiB sequential", 64 * KiB, 16 * GiB, false },
	{ "4 KiB sequential", 4 * KiB, 1 * GiB, false },
	{ "4 KiB random in 1 GiB", 4 * KiB, 1 * GiB, true },
	{ "4 KiB random in 1 TiB", 4 * KiB, 1 * TiB, true },
};

struct writer {
	const struct load *load;
	struct dc_file *file;
	unsigned int count;
	uint64_t client;
	double ns; /* per write */
	pthread_barrier_t *start;
	pthread_t thread;
};

static void *write_round(void *arg)
{
	struct writer *w = arg;
	uint64_t pages = w->load->size >> DC_PAGE_SHIFT, seed = 88172645463325252ULL, start;
	uint64_t *offset = malloc(w->count * sizeof(*offset));

	for (unsigned int i = 0; i < w->count; i++)
		offset[i] = (w->load->random ? rnd(&seed) : i) % (w->load->span / w->load->size) *
			    w->load->size;
	if (w->start)
		pthread_barrier_wait(w->start);
	start = now_ns(NULL);
	for (unsigned int i = 0; i < w->count; i++) {
		if (!dc_admit(ex, pages) || !dc_write_begin(w->file))
			abort();
		dc_write_done(w->file, offset[i], w->load->size, pages, w->client,
			      dc_file_errors(w->file), false);
	}
	w->ns = (double)(now_ns(NULL) - start) / w->count;
	free(offset);
	return NULL;
}

static void bench_writes(void)
{
	unsigned int rounds = quick ? 3 : 15, count = quick ? 20000 : 100000;
	struct dc_file *file[2] = { new_file(1), new_file(2) };
	char name[96];

	heading("admit + begin + record, nothing waiting, best round:");
	for (size_t l = 0; l < sizeof(loads) / sizeof(loads[0]); l++) {
		for (unsigned int threads = 1; threads <= 2; threads++) {
			double best = 1e18;

			for (unsigned int r = 0; r < rounds; r++) {
				struct writer w[2];
				pthread_barrier_t start;
				double worst = 0;

				pthread_barrier_init(&start, NULL, threads);
				for (unsigned int i = 0; i < threads; i++) {
					w[i] = (struct writer){ &loads[l], file[i], count, i,
								0,	   &start,  0 };
					pthread_create(&w[i].thread, NULL, write_round, &w[i]);
				}
				for (unsigned int i = 0; i < threads; i++) {
					pthread_join(w[i].thread, NULL);
					if (w[i].ns > worst)
						worst = w[i].ns;
					dc_file_truncated(file[i], 0, dc_file_seq(file[i]));
				}
				pthread_barrier_destroy(&start);
				if (worst < best)
					best = worst;
			}
			snprintf(name, sizeof(name), "%s, %u thread%s", loads[l].name, threads,
				 threads > 1 ? "s, a file each" : "");
			result(name, best, "ns/write");
		}
	}
	dc_file_put(file[0]);
	dc_file_put(file[1]);
}

/* What dc_write_need() adds on a kernel with cachestat(2). */
static void bench_need(void)
{
	static const char *const names[] = { "dc_write_need(), page not cached",
					     "dc_write_need(), page cached" };
	unsigned int rounds = quick ? 3 : 15, count = 20000;
	struct dc_file *file = new_file(1);

	heading("asking the kernel about cached folios, best round:");
	for (int cached = 0; cached < 2; cached++) {
		double best = 1e18;

		if (cached && pwrite(fd, "x", 1, 5 << DC_PAGE_SHIFT) != 1)
			abort();
		for (unsigned int r = 0; r < rounds; r++) {
			uint64_t start, sum = 0;

			if (!dc_write_begin(file))
				abort();
			start = now_ns(NULL);
			for (unsigned int i = 0; i < count; i++)
				sum += dc_write_need(file, 5 << DC_PAGE_SHIFT, DC_PAGE_SIZE);
			start = now_ns(NULL) - start;
			dc_write_unpin(file);
			if (sum == 0)
				abort();
			if ((double)start / count < best)
				best = (double)start / count;
		}
		result(names[cached], best, "ns");
	}
	dc_file_put(file);
}

/* ---- choosing what to flush ---- */

/* A descriptor for each of a million files is not to be had: they share one. */
static void bench_flush(unsigned int files)
{
	struct dc_file **file = malloc(files * sizeof(*file));
	unsigned int turns = files / 2 < 100000 ? files / 2 : 100000;
	struct dc_params p;
	uint64_t start, before, did;
	char name[64];

	for (unsigned int i = 0; i < files; i++) {
		file[i] = dc_file_get(ex, &i, sizeof(i));
		file[i]->fd = fd;
		if (!dc_admit(ex, 1) || !dc_write_begin(file[i]))
			abort();
		dc_write_done(file[i], (uint64_t)i % 7 << DC_PAGE_SHIFT, DC_PAGE_SIZE, 1, 1,
			      dc_file_errors(file[i]), false);
	}
	dc_export_get_params(ex, &p);
	p.dirty_background_bytes = (uint64_t)(files - turns) << DC_PAGE_SHIFT;
	dc_export_set_params(ex, &p);
	before = dc_dirty_pages(ex);
	start = now_ns(NULL);
	while (dc_dirty_pages(ex) > files - turns)
		dc_device_poll(dev, 0);
	start = now_ns(NULL) - start;
	did = before - dc_dirty_pages(ex);
	snprintf(name, sizeof(name), "pick, take, complete, drop: %u dirty files", files);
	result(name, (double)start / (double)did, "ns/turn");
	for (int i = 0; i < 4; i++)
		dc_device_poll(dev, 0);
	p.dirty_background_bytes = 15 * TiB;
	dc_export_set_params(ex, &p);
	for (unsigned int i = 0; i < files; i++) {
		dc_file_truncated(file[i], 0, dc_file_seq(file[i]));
		if (!dc_write_begin(file[i]) || dc_commit(file[i], 1, 0, 0) != 0)
			abort();
		dc_write_unpin(file[i]);
		/* Off the idle list, without closing what it does not own. */
		if (!dc_write_begin(file[i]))
			abort();
		file[i]->fd = -1;
		file[i]->fd_users = 0;
		dc_file_put(file[i]);
	}
	free(file);
}

/* ---- the memory of the dirty map ---- */

static void map_result(const char *name, struct dc_dirty_map *map)
{
	result(name, 100.0 * (double)map->mem_bytes / (double)(map->nr_pages << DC_PAGE_SHIFT),
	       "% of the bytes tracked");
	dc_map_clear(map);
}

static void bench_memory(void)
{
	struct dc_dirty_map map;
	uint64_t seed = 1;

	heading("memory of the dirty map:");
	dc_map_init(&map);
	dc_map_set(&map, 0, GiB / DC_PAGE_SIZE - 1);
	map_result("sequential 1 GiB", &map);
	for (int i = 0; i < 65536; i++) {
		uint64_t p = rnd(&seed) % (16 * GiB >> DC_PAGE_SHIFT);

		dc_map_set(&map, p, p);
	}
	map_result("65536 random pages in 16 GiB", &map);
	for (int i = 0; i < 65536; i++) {
		uint64_t p = rnd(&seed) % (TiB >> DC_PAGE_SHIFT);

		dc_map_set(&map, p, p);
	}
	map_result("65536 random pages in 1 TiB", &map);
	for (uint64_t p = 0; p < TiB >> DC_PAGE_SHIFT; p += DC_WINDOW_PAGES)
		dc_map_set(&map, p, p);
	map_result("one page in every 2 MiB of 1 TiB", &map);
	for (uint64_t p = 0; p < TiB >> DC_PAGE_SHIFT; p += 65536)
		dc_map_set(&map, p, p);
	map_result("one page in every 256 MiB of 1 TiB", &map);
	dc_map_set(&map, 7, 7);
	map_result("one page", &map);
	dc_map_set(&map, 0, 16 * GiB / DC_PAGE_SIZE - 1);
	for (uint64_t p = 0; p < 16 * GiB >> DC_PAGE_SHIFT; p += 65536)
		dc_map_clear_range(&map, p + 1, p + 65535);
	map_result("16 GiB written, all flushed but 1 page in 256 MiB", &map);
}

int main(int argc, char **argv)
{
	static const struct option options[] = { { "json", no_argument, NULL, 'j' },
						 { "quick", no_argument, NULL, 'q' },
						 { NULL, 0, NULL, 0 } };
	const char *tmp = getenv("TMPDIR");
	int o;

	while ((o = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (o == 'j')
			json = true;
		else if (o == 'q')
			quick = true;
		else
			return 2;
	}
	snprintf(path, sizeof(path), "%.60s/dcmicro.XXXXXX", tmp ? tmp : "/tmp");
	fd = mkstemp(path);
	if (fd < 0) {
		perror(path);
		return 1;
	}
	if (json)
		printf("{ \"benchmark\": \"micro\", \"results\": [");
	engine_new(null_make);
	bench_writes();
	engine_free();
	engine_new(dc_backend_threads);
	bench_need();
	engine_free();
	heading("the flusher, one page dirty in each file:");
	for (unsigned int files = 1000; files <= (quick ? 100000U : 1000000U); files *= 10) {
		engine_new(null_make);
		bench_flush(files);
		engine_free();
	}
	bench_memory();
	if (json)
		printf("\n] }\n");
	close(fd);
	unlink(path);
	return 0;
}
