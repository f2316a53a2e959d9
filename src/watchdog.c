/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The watchdog: what has been waiting for a device for too long is said, with what it is and for how
 * long, and once more when it is over. It changes nothing: a device that does not answer holds up those
 * who wait for it, and nobody else.
 */
#include <inttypes.h>

#include "internal.h"

#define STUCK_NS (10 * DC_NS_PER_S)
#define AGAIN_NS (60 * DC_NS_PER_S)

void dc_watch_begin(struct dc_device *dev, struct dc_watch *w, struct dc_file *file,
		    const char *what, uint64_t offset, uint64_t len)
{
	w->file = file;
	w->what = what;
	w->offset = offset;
	w->len = len;
	w->since = dc_now(dev->eng);
	pthread_mutex_lock(&dev->watch_lock);
	TAILQ_INSERT_TAIL(&dev->watched, w, link);
	dev->nr_watched++;
	pthread_mutex_unlock(&dev->watch_lock);
}

void dc_watch_end(struct dc_device *dev, struct dc_watch *w)
{
	pthread_mutex_lock(&dev->watch_lock);
	TAILQ_REMOVE(&dev->watched, w, link);
	dev->nr_watched--;
	pthread_mutex_unlock(&dev->watch_lock);
}

bool dc_watch_look(struct dc_device *dev, uint64_t now)
{
	uint64_t since = 0, offset = 0, len = 0;
	struct dc_export *exp = NULL;
	const char *what = NULL;
	struct dc_watch *w;
	uint32_t others = 0;
	bool watching, recent;

	pthread_mutex_lock(&dev->watch_lock);
	w = TAILQ_FIRST(&dev->watched); /* in the order of beginning */
	watching = w != NULL;
	recent = !w || w->since + STUCK_NS >= now;
	if (w && w->since + STUCK_NS < now && dev->said_stuck + AGAIN_NS < now) {
		since = w->since;
		what = w->what;
		offset = w->offset;
		len = w->len;
		exp = w->file->exp; /* referenced by the file, the file by what is watched */
		atomic_fetch_add(&exp->refs, 1);
		others = dev->nr_watched - 1;
	}
	pthread_mutex_unlock(&dev->watch_lock);
	if (exp) {
		dc_log(dev->eng, DC_LOG_ERROR,
		       "export %u (%s): %s of %" PRIu64 " KiB at offset %" PRIu64
		       " has been under way "
		       "for %" PRIu64
		       " s, and %u more wait with it. The device does not answer; what "
		       "is written to it waits, other devices do not",
		       exp->id, exp->path, what, len >> 10, offset,
		       (uint64_t)((now - since) / DC_NS_PER_S), others);
		dev->said_stuck = now;
		dev->stuck = true;
		dc_export_put(exp);
	} else if (dev->stuck && recent) {
		dc_log(dev->eng, DC_LOG_WARN, "device %" PRIu64 ":%" PRIu64 " answers again",
		       dev->id >> 8 & 0xfff, (dev->id & 0xff) | (dev->id >> 12 & 0xfff00));
		dev->stuck = false;
		dev->said_stuck = 0;
	}
	return watching;
}
