/* Long launches in coarse steps: a CTA goes over the tiles of many small steps at once.
 *
 * Its loads are asked for as it comes to them and it goes on when all small steps are computed, or when every one that
 * missed has waited in its turn. What CTAs wait for one another is kept: who comes to tiles that are being fetched leaves
 * them no sooner than the one that fetches.
 */
#ifndef IOSIM_COARSE_H
#define IOSIM_COARSE_H
#include "launch.h"

/* Whether what the loop touches again at every small step is followed in the L2 for this work tile. */
static int stays_followed(const L2State *s, const LaunchPlan *l, int tile) {
    for (int k = l->walks; k < l->n_loop; k++)
        if (l->loop[k].base[tile] != NIL && s->object[l->loop[k].base[tile]].samples > 0) return 1;
    return 0;
}

/* Plays a step, or a small step of one where its own tiles are followed; returns when the next is due. */
static int64_t coarse_step(L2State *s, const L2Config *c, const LaunchPlan *l, const Sms *sms, Cta *a, int p, int64_t t,
                           Trace *tr) {
    int tile = a->tile, stays = l->n_loop > l->walks && stays_followed(s, l, tile);
    if (a->left == 0) {
        /* A coarse step begins: loads of all its small steps at once. Small steps at a tile's ends may be
         * fewer, so that tiles begin and end where they would in small steps. */
        int small = a->step == 0 ? l->lead[tile] : a->step == l->count[tile] - 1 ? l->trail[tile] : l->coarse;
        s->stands = small;
        s->whole = l->coarse;
        int64_t step = this_step(l, sms, a) * small;
        s->covered_ps = l->waits ? (c->l2_latency_ps + c->far_latency_ps) * small : step;
        int64_t there = run_templates(s, c, l->loop, l->walks, tile, loop_index(l, tile, a->step), p, t, tr);
        int64_t done = next_step_at(s, c, l, t, step, there);
        s->stands = s->whole = 1;
        s->alone_ps += step;
        s->took_ps += done - t;
        a->left = stays ? small : 1;
        a->each_ps = (done - t) / a->left;
    }
    /* What is stored to the same place at each small step (spilled registers, an accumulator) keeps
     * its lines in the L2 by being touched so often: it is played small step by small step. */
    if (stays) run_templates(s, c, l->loop + l->walks, l->n_loop - l->walks, tile, 0, p, t, tr);
    if (--a->left == 0) a->step++;
    return t + a->each_ps;
}

#endif
