/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* What is measured between `from` and `to`, and what is expected of it. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

#define WITHIN 0.10 /* of the set point */

void sim_latency(struct sim_clients *g, uint64_t ns)
{
	double us = (double)ns / 1000;
	int i = us <= 1 ? 0 : (int)(log(us) / log(1.06));

	g->latency[i < SIM_BUCKETS ? i : SIM_BUCKETS - 1]++;
	g->latency_max = dc_max_u64(g->latency_max, ns);
	g->writes++;
}

static double percentile_ms(const struct sim_clients *g, double p)
{
	uint64_t seen = 0;

	for (int i = 0; i < SIM_BUCKETS; i++) {
		seen += g->latency[i];
		if (seen > 0 && (double)seen >= p * (double)g->writes)
			return pow(1.06, i + 1) / 1000;
	}
	return 0;
}

/* Every `sample`: is any budget exceeded, how far is what is dirty from its set point? */
void sim_sample(struct sim *s)
{
	bool measured = s->now >= s->from && s->now < s->to;
	uint64_t all = 0, files = 0;

	for (unsigned int g = 0; g < s->nr_exports; g++) {
		for (unsigned int i = 0; i < s->exports[g].count; i++) {
			struct sim_export *e = &s->exports[g].exp[i];
			uint64_t pages = dc_dirty_pages(e->exp) + atomic_load(&e->exp->writeback);
			uint64_t limit = atomic_load(&e->exp->limit);
			uint64_t setpoint = atomic_load(&e->exp->setpoint);
			double off;

			all += pages;
			files += e->exp->heap_nr;
			/* A limit that was lowered is reached as pages are written. */
			if (pages > limit && s->nr_changes == 0)
				s->over_budget = dc_max_u64(s->over_budget,
							    (pages - limit) << DC_PAGE_SHIFT);
			e->peak = dc_max_u64(e->peak, pages << DC_PAGE_SHIFT);
			if (s->trace)
				fprintf(s->trace, "%.3f,%s%u,%.0f,%.0f,%.0f,%.0f,%.0f,%.0f\n",
					(double)s->now / 1e9, s->exports[g].name, i,
					(double)dc_dirty_pages(e->exp) * 4096,
					(double)atomic_load(&e->exp->writeback) * 4096,
					(double)setpoint * 4096, (double)limit * 4096,
					e->exp->pace.rate * 4096, e->exp->done.per_s * 4096);
			if (!measured || atomic_load(&e->exp->contended) == 0 || setpoint == 0)
				continue;
			off = fabs((double)pages - (double)setpoint) / (double)setpoint;
			e->samples++;
			e->near += off <= WITHIN;
			e->off_sum += off;
		}
	}
	s->dirty_files = dc_max_u64(s->dirty_files, files);
	if (s->global && s->nr_changes == 0 && all << DC_PAGE_SHIFT > s->global)
		s->over_global = dc_max_u64(s->over_global, (all << DC_PAGE_SHIFT) - s->global);
}

/* Every 100 ms: what each client got. */
void sim_window(struct sim *s)
{
	if (s->now <= s->from || s->now > s->to)
		return;
	for (unsigned int g = 0; g < s->nr_clients; g++) {
		struct sim_clients *group = &s->clients[g];

		if (s->now > group->stop || s->now < group->start + DC_NS_PER_S)
			continue;
		group->windows++;
		for (unsigned int i = 0; i < group->count; i++) {
			struct sim_client *c = &group->client[i];
			double b = (double)c->window_bytes;

			c->sum += b;
			c->squares += b * b;
		}
	}
	for (unsigned int g = 0; g < s->nr_clients; g++)
		for (unsigned int i = 0; i < s->clients[g].count; i++)
			s->clients[g].client[i].window_bytes = 0;
}

static double jain(const struct sim_clients *g)
{
	double sum = 0, squares = 0;

	for (unsigned int i = 0; i < g->count; i++) {
		double b = (double)g->client[i].bytes;

		sum += b;
		squares += b * b;
	}
	return squares > 0 ? sum * sum / (g->count * squares) : 0;
}

/* Coefficient of variation of a client's windows; mean over clients. */
static double variation(const struct sim_clients *g)
{
	double all = 0;

	if (g->windows == 0)
		return 0;
	for (unsigned int i = 0; i < g->count; i++) {
		double mean = g->client[i].sum / g->windows;
		double var = g->client[i].squares / g->windows - mean * mean;

		all += mean > 0 ? sqrt(fmax(var, 0)) / mean : 0;
	}
	return all / g->count;
}

static double rate(const struct sim *s, const struct sim_clients *g)
{
	double bytes = 0;
	uint64_t from = dc_max_u64(s->from, g->start), to = dc_min_u64(s->to, g->stop);

	for (unsigned int i = 0; i < g->count; i++)
		bytes += (double)g->client[i].bytes;
	return to > from ? bytes / ((double)(to - from) / DC_NS_PER_S) : 0;
}

static double utilisation(const struct sim_devices *g)
{
	double least = 1;

	for (unsigned int i = 0; i < g->count; i++) {
		const struct sim_device *d = &g->dev[i];
		double all = (double)(d->busy_ns + d->lost_ns);

		if (all > 0)
			least = fmin(least, (double)d->busy_ns / all);
	}
	return least;
}

static double near_setpoint(const struct sim_exports *g)
{
	uint64_t samples = 0, near = 0;

	for (unsigned int i = 0; i < g->count; i++) {
		samples += g->exp[i].samples;
		near += g->exp[i].near;
	}
	return samples ? (double)near / (double)samples : 0;
}

static double off_setpoint(const struct sim_exports *g)
{
	uint64_t samples = 0;
	double sum = 0;

	for (unsigned int i = 0; i < g->count; i++) {
		samples += g->exp[i].samples;
		sum += g->exp[i].off_sum;
	}
	return samples ? sum / (double)samples : 0;
}

static struct sim_clients *clients(struct sim *s, const char *name)
{
	for (unsigned int i = 0; i < s->nr_clients; i++)
		if (strcmp(s->clients[i].name, name) == 0)
			return &s->clients[i];
	return NULL;
}

/* One figure by its name in a scenario: METRIC or METRIC:GROUP or METRIC:GROUP/GROUP. */
static bool figure(struct sim *s, const char *name, double *v)
{
	char text[120], *group, *other;

	snprintf(text, sizeof(text), "%s", name);
	group = strchr(text, ':');
	if (!group) {
		if (strcmp(text, "over_budget") == 0)
			*v = (double)s->over_budget;
		else if (strcmp(text, "over_global") == 0)
			*v = (double)s->over_global;
		else if (strcmp(text, "refused") == 0)
			*v = (double)s->refused;
		else if (strcmp(text, "dirty_files") == 0)
			*v = (double)s->dirty_files;
		else
			return false;
		return true;
	}
	*group++ = '\0';
	other = strchr(group, '/');
	if (other)
		*other++ = '\0';
	for (unsigned int i = 0; i < s->nr_devices; i++) {
		if (strcmp(s->devices[i].name, group) == 0 && strcmp(text, "utilisation") == 0) {
			*v = utilisation(&s->devices[i]);
			return true;
		}
	}
	for (unsigned int i = 0; i < s->nr_exports; i++) {
		if (strcmp(s->exports[i].name, group) != 0)
			continue;
		if (strcmp(text, "near_setpoint") == 0)
			*v = near_setpoint(&s->exports[i]);
		else if (strcmp(text, "off_setpoint") == 0)
			*v = off_setpoint(&s->exports[i]);
		else if (strcmp(text, "peak") == 0)
			*v = (double)s->exports[i].exp[0].peak;
		else
			continue;
		return true;
	}
	if (clients(s, group)) {
		const struct sim_clients *g = clients(s, group);

		if (strcmp(text, "jain") == 0)
			*v = jain(g);
		else if (strcmp(text, "variation") == 0)
			*v = variation(g);
		else if (strcmp(text, "rate") == 0)
			*v = rate(s, g);
		else if (strcmp(text, "p999_ms") == 0)
			*v = percentile_ms(g, 0.999);
		else if (strcmp(text, "p50_ms") == 0)
			*v = percentile_ms(g, 0.5);
		else if (strcmp(text, "max_ms") == 0)
			*v = (double)g->latency_max / 1e6;
		else if (strcmp(text, "gap_ms") == 0)
			*v = (double)g->gap_max / 1e6;
		else if (strcmp(text, "ratio") == 0 && other && clients(s, other))
			*v = rate(s, g) / g->count /
			     (rate(s, clients(s, other)) / clients(s, other)->count);
		else
			return false;
		return true;
	}
	return false;
}

static int check(struct sim *s, const struct sim_expect *e)
{
	char name[64], op[4];
	double want, have;
	bool ok;

	if (sscanf(e->text, "%63s %3s %lf", name, op, &want) != 3 || !figure(s, name, &have)) {
		fprintf(stderr, "%s:%u: expect %s: no such figure\n", s->file, e->line, e->text);
		return 1;
	}
	ok = strcmp(op, ">=") == 0 ? have >= want :
	     strcmp(op, "<=") == 0 ? have <= want :
	     strcmp(op, "==") == 0 ? have == want :
				     false;
	fprintf(stderr, "%s:%u: %-6s %s: %.6g\n", s->file, e->line, ok ? "ok" : "FAILED", e->text,
		have);
	return !ok;
}

int sim_report(struct sim *s, FILE *out, double real_s)
{
	int failed = 0;

	fprintf(out, "{\"scenario\":\"%s\",\"seed\":%" PRIu64 ",\"events\":%" PRIu64, s->file,
		s->seed, s->events);
	fprintf(out,
		",\"over_budget\":%" PRIu64 ",\"over_global\":%" PRIu64 ",\"refused\":%" PRIu64,
		s->over_budget, s->over_global, s->refused);
	fprintf(out, ",\"dirty_files\":%" PRIu64 ",\n \"devices\":{", s->dirty_files);
	for (unsigned int i = 0; i < s->nr_devices; i++)
		fprintf(out, "%s\"%s\":{\"utilisation\":%.4f}", i ? "," : "", s->devices[i].name,
			utilisation(&s->devices[i]));
	fprintf(out, "},\n \"exports\":{");
	for (unsigned int i = 0; i < s->nr_exports; i++)
		fprintf(out,
			"%s\"%s\":{\"near_setpoint\":%.4f,\"off_setpoint\":%.4f,\"peak\":%" PRIu64
			"}",
			i ? "," : "", s->exports[i].name, near_setpoint(&s->exports[i]),
			off_setpoint(&s->exports[i]), s->exports[i].exp[0].peak);
	fprintf(out, "},\n \"clients\":{");
	for (unsigned int i = 0; i < s->nr_clients; i++) {
		struct sim_clients *g = &s->clients[i];

		fprintf(out,
			"%s\"%s\":{\"count\":%u,\"rate\":%.0f,\"jain\":%.4f,\"variation\":%.4f,"
			"\"p50_ms\":%.3f,\"p999_ms\":%.3f,\"max_ms\":%.3f,\"gap_ms\":%.3f}",
			i ? ",\n  " : "", g->name, g->count, rate(s, g), jain(g), variation(g),
			percentile_ms(g, 0.5), percentile_ms(g, 0.999),
			(double)g->latency_max / 1e6, (double)g->gap_max / 1e6);
	}
	fprintf(out, "}}\n");
	for (unsigned int i = 0; i < s->nr_expects; i++)
		failed += check(s, &s->expect[i]);
	fprintf(stderr, "%s: %" PRIu64 " events in %.1f s, %.2f us each\n", s->file, s->events,
		real_s, real_s * 1e6 / (double)(s->events ? s->events : 1));
	return failed;
}
