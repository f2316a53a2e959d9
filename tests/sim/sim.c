/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 *	sim [--law linear|cubic|delay|none] [--trace FILE.csv] [--out FILE.json] SCENARIO
 *
 * Runs one scenario, prints what it measured, and fails if an expectation does not hold.
 */
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sim.h"

#define WINDOW_NS (100 * DC_NS_PER_MS)
#define BEGIN_NS DC_NS_PER_S /* the clock never reads 0 */

/* ---- events ---- */

static bool before(const struct sim_event *a, const struct sim_event *b)
{
	return a->at != b->at ? a->at < b->at : a->order < b->order;
}

void sim_at(struct sim *s, uint64_t at, enum sim_what what, void *arg)
{
	struct sim_event ev = { at, s->order++, what, arg };
	uint32_t i;

	if (s->heap_nr == s->heap_cap) {
		s->heap_cap = s->heap_cap ? 2 * s->heap_cap : 1024;
		s->heap = dc_realloc(s->heap, s->heap_cap * sizeof(*s->heap));
	}
	for (i = s->heap_nr++; i > 0 && before(&ev, &s->heap[(i - 1) / 2]); i = (i - 1) / 2)
		s->heap[i] = s->heap[(i - 1) / 2];
	s->heap[i] = ev;
}

static struct sim_event pop(struct sim *s)
{
	struct sim_event first = s->heap[0], last = s->heap[--s->heap_nr];
	uint32_t i = 0;

	for (;;) {
		uint32_t down = 2 * i + 1;

		if (down >= s->heap_nr)
			break;
		if (down + 1 < s->heap_nr && before(&s->heap[down + 1], &s->heap[down]))
			down++;
		if (!before(&s->heap[down], &last))
			break;
		s->heap[i] = s->heap[down];
		i = down;
	}
	if (s->heap_nr)
		s->heap[i] = last;
	return first;
}

/* xorshift64*, Vigna 2016 */
uint64_t sim_random(struct sim *s)
{
	static uint64_t x;

	if (x == 0)
		x = s->seed * 0x9e3779b97f4a7c15ULL | 1;
	x ^= x >> 12;
	x ^= x << 25;
	x ^= x >> 27;
	return x * 0x2545f4914f6cdd1dULL >> 8;
}

/* ---- what the engine asks of us ---- */

static uint64_t now(void *host)
{
	struct sim *s = host;

	/* Loops with a timeout end. */
	return s->ended ? s->now++ : s->now;
}

static void say(void *host, enum dc_log_level level, const char *text)
{
	struct sim *s = host;

	(void)level;
	if (s->logged++ < 20 && getenv("SIM_LOG"))
		fprintf(stderr, "%.3f s: %s\n", (double)s->now / 1e9, text);
}

static void resume(void *host, void *connection)
{
	(void)host;
	sim_resume(connection);
}

/* ---- the run ---- */

static void change(struct sim *s, const struct sim_change *c)
{
	if (!c->exports) {
		dc_engine_set_dirty_bytes(s->eng, c->global);
		return;
	}
	for (unsigned int i = 0; i < c->exports->count; i++)
		dc_export_set_params(c->exports->exp[i].exp, &c->params);
}

static void start(struct sim *s)
{
	static const struct dc_host_ops ops = { now, say, resume };
	struct dc_engine_options opt = { .max_open_files = UINT32_MAX,
					 .law = s->law,
					 .dirty_bytes = s->global };
	uint32_t id = 1;

	s->now = BEGIN_NS;
	/* Numbers that close(2) and fstat(2) refuse. */
	s->next_fd = 1u << 29;
	s->eng = dc_engine_new(&ops, s, &opt);
	for (unsigned int g = 0; g < s->nr_devices; g++)
		for (unsigned int i = 0; i < s->devices[g].count; i++)
			sim_device_start(s, &s->devices[g].dev[i], id++);
	id = 1;
	for (unsigned int g = 0; g < s->nr_exports; g++)
		for (unsigned int i = 0; i < s->exports[g].count; i++)
			s->exports[g].exp[i].exp = dc_export_new(s->exports[g].exp[i].dev->dev,
								 id++, "/sim",
								 &s->exports[g].params);
	for (unsigned int g = 0; g < s->nr_clients; g++)
		for (unsigned int i = 0; i < s->clients[g].count; i++)
			sim_client_start(s, &s->clients[g], &s->clients[g].client[i]);
	for (unsigned int i = 0; i < s->nr_changes; i++)
		sim_at(s, s->change[i].at, SIM_CHANGE, &s->change[i]);
	sim_at(s, BEGIN_NS, SIM_SAMPLE, NULL);
	sim_at(s, BEGIN_NS, SIM_WINDOW, NULL);
}

/* Scenarios count from 0. */
static void shift(struct sim *s)
{
	s->from += BEGIN_NS;
	s->to += BEGIN_NS;
	for (unsigned int g = 0; g < s->nr_clients; g++) {
		s->clients[g].start += BEGIN_NS;
		if (s->clients[g].stop != SIM_NEVER)
			s->clients[g].stop += BEGIN_NS;
	}
	for (unsigned int i = 0; i < s->nr_changes; i++)
		s->change[i].at += BEGIN_NS;
	for (unsigned int g = 0; g < s->nr_devices; g++)
		for (unsigned int i = 0; i < s->devices[g].count; i++)
			for (unsigned int k = 0; k < s->devices[g].dev[i].nr_steps; k++)
				s->devices[g].dev[i].step[k].at += BEGIN_NS;
}

static void run(struct sim *s)
{
	while (s->heap_nr > 0) {
		struct sim_event ev = pop(s);

		if (ev.at > s->to)
			break;
		dc_assert(ev.at >= s->now);
		s->now = ev.at;
		s->events++;
		switch (ev.what) {
		case SIM_ISSUE:
			sim_issue(ev.arg);
			break;
		case SIM_POLL:
			if (((struct sim_device *)ev.arg)->next_poll == ev.at)
				sim_device_poll(ev.arg);
			break;
		case SIM_SAMPLE:
			sim_sample(s);
			sim_at(s, s->now + s->sample_ns, SIM_SAMPLE, NULL);
			break;
		case SIM_WINDOW:
			sim_window(s);
			sim_at(s, s->now + WINDOW_NS, SIM_WINDOW, NULL);
			break;
		case SIM_CHANGE:
			change(s, ev.arg);
			break;
		}
	}
}

static void end(struct sim *s)
{
	s->ended = true;
	for (unsigned int g = 0; g < s->nr_exports; g++)
		for (unsigned int i = 0; i < s->exports[g].count; i++)
			dc_export_drain(s->exports[g].exp[i].exp, 0);
	for (unsigned int g = 0; g < s->nr_devices; g++)
		for (unsigned int i = 0; i < s->devices[g].count; i++)
			sim_device_drain(&s->devices[g].dev[i]);
	for (unsigned int g = 0; g < s->nr_clients; g++)
		for (unsigned int i = 0; i < s->clients[g].count; i++)
			sim_client_end(&s->clients[g].client[i]);
	for (unsigned int g = 0; g < s->nr_exports; g++)
		for (unsigned int i = 0; i < s->exports[g].count; i++)
			dc_assert(dc_export_free(s->exports[g].exp[i].exp, DC_NS_PER_S));
	dc_engine_free(s->eng);
	for (unsigned int g = 0; g < s->nr_devices; g++)
		free(s->devices[g].dev);
	for (unsigned int g = 0; g < s->nr_exports; g++)
		free(s->exports[g].exp);
	for (unsigned int g = 0; g < s->nr_clients; g++)
		free(s->clients[g].client);
	free(s->heap);
}

static double seconds_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void usage(void)
{
	fputs("usage: sim [--law linear|cubic|delay|none] [--trace FILE.csv] [--out FILE.json] SCENARIO\n",
	      stderr);
	exit(2);
}

int main(int argc, char **argv)
{
	static const struct option options[] = { { "law", required_argument, NULL, 'l' },
						 { "trace", required_argument, NULL, 't' },
						 { "out", required_argument, NULL, 'o' },
						 { 0 } };
	struct sim *s = dc_zalloc(sizeof(*s));
	FILE *out = stdout;
	bool known = true;
	double began;
	int c, failed;

	s->law = dc_pace_linear;
	while ((c = getopt_long(argc, argv, "", options, NULL)) >= 0) {
		switch (c) {
		case 'l':
			s->law = sim_law(optarg, &known);
			if (!known)
				usage();
			break;
		case 't':
			s->trace = fopen(optarg, "we");
			if (!s->trace) {
				perror(optarg);
				return 2;
			}
			fputs("seconds,export,dirty,writeback,setpoint,limit,admission,completion\n",
			      s->trace);
			break;
		case 'o':
			out = fopen(optarg, "we");
			if (!out) {
				perror(optarg);
				return 2;
			}
			break;
		default:
			usage();
		}
	}
	if (optind != argc - 1)
		usage();
	sim_read(s, argv[optind]);
	shift(s);
	began = seconds_now();
	start(s);
	run(s);
	failed = sim_report(s, out, seconds_now() - began);
	end(s);
	if (s->trace)
		fclose(s->trace);
	if (out != stdout)
		fclose(out);
	free(s);
	return failed ? 1 : 0;
}
