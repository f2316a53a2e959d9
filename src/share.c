/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Max-min fair division: see dontcache/share.h. */
#include "dontcache/share.h"

#include <stdbool.h>

double dc_share_more(struct dc_share *share, size_t n, double rest)
{
	/* Each round fills up at least one, or is the last. */
	for (;;) {
		double weights = 0, given = 0;
		bool full = false;

		for (size_t i = 0; i < n; i++)
			if (share[i].out < share[i].max)
				weights += share[i].weight;
		if (weights <= 0 || rest <= 0)
			return rest;
		for (size_t i = 0; i < n; i++) {
			double room = share[i].max - share[i].out;

			if (room <= 0 || share[i].weight * rest / weights < room)
				continue;
			share[i].out = share[i].max;
			given += room;
			full = true;
		}
		if (full) {
			rest -= given;
			continue;
		}
		for (size_t i = 0; i < n; i++)
			if (share[i].out < share[i].max)
				share[i].out += share[i].weight * rest / weights;
		return 0;
	}
}

double dc_share_out(struct dc_share *share, size_t n, double total)
{
	double mins = 0;

	for (size_t i = 0; i < n; i++)
		mins += share[i].min;
	for (size_t i = 0; i < n; i++)
		share[i].out = mins > total ? share[i].min * total / mins : share[i].min;
	return mins > total ? 0 : dc_share_more(share, n, total - mins);
}
