/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Reads a scenario; scenarios/README.md has the words. What is wrong ends the program with file, line and
 * word. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "sim.h"

struct reader {
	struct sim *s;
	unsigned int line;
	char *word[32];
	unsigned int nr, at;
};

static void bad(const struct reader *r, const char *fmt, ...)
	__attribute__((noreturn, format(printf, 2, 3)));

static void bad(const struct reader *r, const char *fmt, ...)
{
	va_list ap;

	fprintf(stderr, "%s:%u: ", r->s->file, r->line);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	exit(2);
}

static const char *next(struct reader *r)
{
	if (r->at >= r->nr)
		bad(r, "something is missing behind \"%s\"", r->word[r->nr - 1]);
	return r->word[r->at++];
}

static bool more(const struct reader *r)
{
	return r->at < r->nr;
}

static double number(struct reader *r)
{
	const char *text = next(r);
	char *end;
	double v = strtod(text, &end);

	if (end == text || v < 0 || strlen(end) > 1 || (*end && !strchr("KMGT", *end)))
		bad(r, "\"%s\" is not a number, which may end in K, M, G or T", text);
	for (const char *u = "KMGT"; *end && *u; u++) {
		v *= 1024;
		if (*u == *end)
			break;
	}
	return v;
}

static uint64_t seconds(struct reader *r)
{
	return (uint64_t)(number(r) * DC_NS_PER_S);
}

static void name(struct reader *r, char *to)
{
	const char *text = next(r);

	if (strlen(text) >= SIM_NAME)
		bad(r, "the name \"%s\" is longer than %d", text, SIM_NAME - 1);
	strcpy(to, text);
}

static void room(const struct reader *r, unsigned int nr)
{
	if (nr >= SIM_MAX_GROUPS)
		bad(r, "more than %d of them", SIM_MAX_GROUPS);
}

static struct sim_devices *devices_of(struct reader *r)
{
	const char *text = next(r);

	for (unsigned int i = 0; i < r->s->nr_devices; i++)
		if (strcmp(r->s->devices[i].name, text) == 0)
			return &r->s->devices[i];
	bad(r, "no devices \"%s\"", text);
}

static struct sim_exports *exports_of(struct reader *r)
{
	const char *text = next(r);

	for (unsigned int i = 0; i < r->s->nr_exports; i++)
		if (strcmp(r->s->exports[i].name, text) == 0)
			return &r->s->exports[i];
	bad(r, "no exports \"%s\"", text);
}

static void expect_word(struct reader *r, const char *want)
{
	const char *text = next(r);

	if (strcmp(text, want) != 0)
		bad(r, "\"%s\" where \"%s\" is expected", text, want);
}

static void refused(void *arg, bool error, const struct dc_param *param, const char *msg)
{
	(void)param;
	if (error)
		bad(arg, "%s", msg);
}

static void params(struct reader *r, struct dc_params *p)
{
	static const struct dc_machine unknown;

	char msg[DC_PARAM_MSG], key[64];

	while (more(r)) {
		const char *text = next(r), *eq = strchr(text, '=');
		const struct dc_param *param;

		if (!eq || eq - text >= (int)sizeof(key))
			bad(r, "\"%s\" is not Parameter=value", text);
		snprintf(key, sizeof(key), "%.*s", (int)(eq - text), text);
		param = dc_param_find(key);
		if (!param)
			bad(r, "no parameter \"%s\"", key);
		if (!dc_param_set(p, param, eq + 1, msg))
			bad(r, "%s", msg);
	}
	dc_params_check(p, &unknown, refused, r);
}

static void read_devices(struct reader *r)
{
	struct sim_devices *g = &r->s->devices[r->s->nr_devices];
	struct sim_device d = { 0 };

	room(r, r->s->nr_devices++);
	name(r, g->name);
	g->count = (unsigned int)number(r);
	d.rate = number(r);
	while (more(r)) {
		const char *what = next(r);

		if (strcmp(what, "op_us") == 0) {
			d.op_ns = (uint64_t)(number(r) * 1000);
		} else if (strcmp(what, "seek_ms") == 0) {
			d.seek_ns = (uint64_t)(number(r) * 1e6);
		} else if (strcmp(what, "low") == 0) {
			d.low = number(r);
			expect_word(r, "every");
			d.every = seconds(r);
		} else if (strcmp(what, "fails") == 0) {
			d.fails = true;
		} else {
			bad(r, "a device has op_us, seek_ms, low ... every, fails; not \"%s\"",
			    what);
		}
	}
	g->dev = dc_zalloc(g->count * sizeof(*g->dev));
	for (unsigned int i = 0; i < g->count; i++)
		g->dev[i] = d;
}

static void read_exports(struct reader *r)
{
	struct sim_exports *g = &r->s->exports[r->s->nr_exports];
	struct sim_devices *d;

	room(r, r->s->nr_exports);
	name(r, g->name);
	g->count = (unsigned int)number(r);
	expect_word(r, "on");
	d = devices_of(r);
	dc_params_defaults(&g->params);
	params(r, &g->params);
	g->exp = dc_zalloc(g->count * sizeof(*g->exp));
	for (unsigned int i = 0; i < g->count; i++)
		g->exp[i].dev = &d->dev[i % d->count];
	r->s->nr_exports++;
}

static void read_clients(struct reader *r)
{
	struct sim_clients *g = &r->s->clients[r->s->nr_clients];
	struct sim_exports *e;

	room(r, r->s->nr_clients++);
	name(r, g->name);
	g->sim = r->s;
	g->count = (unsigned int)number(r);
	expect_word(r, "on");
	e = exports_of(r);
	*g = (struct sim_clients){ .sim = r->s,
				   .count = g->count,
				   .depth = 4,
				   .files = 1,
				   .block = 1 << 20,
				   .size = 1ULL << 40,
				   .rtt_ns = 200000,
				   .stop = SIM_NEVER };
	strcpy(g->name, r->word[1]);
	while (more(r)) {
		const char *what = next(r);

		if (strcmp(what, "block") == 0)
			g->block = (uint64_t)number(r);
		else if (strcmp(what, "depth") == 0)
			g->depth = (unsigned int)number(r);
		else if (strcmp(what, "files") == 0)
			g->files = (unsigned int)number(r);
		else if (strcmp(what, "size") == 0)
			g->size = (uint64_t)number(r);
		else if (strcmp(what, "rtt_us") == 0)
			g->rtt_ns = (uint64_t)(number(r) * 1000);
		else if (strcmp(what, "think_ms") == 0)
			g->think_ns = (uint64_t)(number(r) * 1e6);
		else if (strcmp(what, "start") == 0)
			g->start = seconds(r);
		else if (strcmp(what, "stop") == 0)
			g->stop = seconds(r);
		else if (strcmp(what, "random") == 0)
			g->random = true;
		else
			bad(r,
			    "clients have block, depth, files, size, rtt_us, think_ms, start, stop, random; "
			    "not \"%s\"",
			    what);
	}
	if (g->block == 0 || g->block > DC_MAX_WRITE || g->size < g->block || g->files == 0 ||
	    g->depth == 0)
		bad(r, "block: 1 to 1M and at most size; depth and files: at least 1");
	g->client = dc_zalloc(g->count * sizeof(*g->client));
	for (unsigned int i = 0; i < g->count; i++) {
		g->client[i].id = i;
		g->client[i].exp = &e->exp[i % e->count];
	}
}

/* at T devices NAME RATE; at T exports NAME Param=...; at T global SIZE */
static void read_change(struct reader *r)
{
	uint64_t at = seconds(r);
	const char *what = next(r);

	if (strcmp(what, "devices") == 0) {
		struct sim_devices *g = devices_of(r);
		double rate = number(r);

		for (unsigned int i = 0; i < g->count; i++) {
			if (g->dev[i].nr_steps == SIM_MAX_STEPS)
				bad(r, "more than %d changes of a device", SIM_MAX_STEPS);
			g->dev[i].step[g->dev[i].nr_steps++] = (struct sim_step){ at, rate };
		}
		return;
	}
	room(r, r->s->nr_changes);
	r->s->change[r->s->nr_changes].at = at;
	if (strcmp(what, "exports") == 0) {
		struct sim_exports *g = exports_of(r);

		r->s->change[r->s->nr_changes].exports = g;
		r->s->change[r->s->nr_changes].params = g->params;
		params(r, &r->s->change[r->s->nr_changes].params);
	} else if (strcmp(what, "global") == 0) {
		r->s->change[r->s->nr_changes].global = (uint64_t)number(r);
	} else {
		bad(r, "devices, exports or global can change, not \"%s\"", what);
	}
	r->s->nr_changes++;
}

static void read_line(struct reader *r)
{
	struct sim *s = r->s;
	const char *what = next(r);

	if (strcmp(what, "seed") == 0) {
		s->seed = (uint64_t)number(r);
	} else if (strcmp(what, "global") == 0) {
		s->global = (uint64_t)number(r);
	} else if (strcmp(what, "measure") == 0) {
		s->from = seconds(r);
		s->to = seconds(r);
	} else if (strcmp(what, "sample_ms") == 0) {
		s->sample_ns = (uint64_t)(number(r) * 1e6);
	} else if (strcmp(what, "devices") == 0) {
		read_devices(r);
	} else if (strcmp(what, "exports") == 0) {
		read_exports(r);
	} else if (strcmp(what, "clients") == 0) {
		read_clients(r);
	} else if (strcmp(what, "at") == 0) {
		read_change(r);
	} else {
		bad(r,
		    "no \"%s\" here: seed, global, measure, sample_ms, devices, exports, clients, at, "
		    "expect",
		    what);
	}
	if (more(r))
		bad(r, "\"%s\" is too much", next(r));
}

void sim_read(struct sim *s, const char *path)
{
	struct reader r = { .s = s };
	FILE *in = fopen(path, "re");
	char line[512];

	s->file = path;
	s->seed = 1;
	s->sample_ns = 10 * DC_NS_PER_MS;
	if (!in) {
		perror(path);
		exit(2);
	}
	while (fgets(line, sizeof(line), in)) {
		char *save, *word;

		r.line++;
		r.nr = r.at = 0;
		line[strcspn(line, "#\n")] = '\0';
		word = line + strspn(line, " \t");
		if (strncmp(word, "expect ", 7) == 0) {
			room(&r, s->nr_expects);
			s->expect[s->nr_expects].line = r.line;
			snprintf(s->expect[s->nr_expects++].text, sizeof(s->expect[0].text), "%s",
				 word + 7);
			continue;
		}
		for (word = strtok_r(line, " \t", &save); word && r.nr < 32;
		     word = strtok_r(NULL, " \t", &save))
			r.word[r.nr++] = word;
		if (r.nr > 0)
			read_line(&r);
	}
	fclose(in);
	if (s->to <= s->from)
		bad(&r, "no \"measure FROM TO\", or nothing between them");
}
