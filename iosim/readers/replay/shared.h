/* What the engine and Python both hold: the structures of the engine's entries, and their constants.
 *
 * Python reads this file (layout.py) and builds its structures from it, so that they stand here alone. It knows structures
 * of integers of stated width, pointers, arrays and structures named before; integer constants; and enums with values.
 */
#ifndef IOSIM_SHARED_H
#define IOSIM_SHARED_H
#include <stdint.h>

#define NIL (-1)
#define MAX_DEPTH 64
#define MAX_TENSORS 64
#define MAX_TEMPLATES 24
#define MAX_WAYS 32
#define MAX_PARTITIONS 64

/* LAST_LOAD: of a line that is not needed again (LDL.LU). */
enum { LOAD = 0, STORE = 1, REDUCE = 2, LAST_LOAD = 3 };

/* What an entry returns where it did not do what was asked: no memory; told to stop; or what it was given does not fit
 * together, and nothing was touched. */
enum { NO_MEMORY = -1, STOPPED = -2, REFUSED = -3 };

typedef struct {
    int32_t partitions, sets, ways, dirty_share; /* sets: sampled sets of a partition; dirty_share: most dirty lines of a set, in 256ths */
    int64_t sample_bytes;                          /* bytes of memory that one sampled line stands for */
    int64_t dram_ps_per_kib, dram_write_ps_per_kib, l2_ps_per_kib, l2_latency_ps, far_latency_ps, dram_latency_ps;
    int32_t apart;         /* whether each partition is an L2 for itself, which asks memory for what it lacks, not another */
    int32_t side_sets, side_ways; /* of the cache at the memory's side: followed sets of it; 0: there is none */
    int32_t keeps_dirty;   /* whether a new line takes a clean one's place, and dirty ones are written back by chance */
    int64_t side_ps_per_kib, side_latency_ps; /* between it and the L2s */
} L2Config;

typedef struct {
    int64_t ready;                /* when it arrives, where it is being fetched */
    int32_t size, first, samples; /* bytes; its sampled lines are [first, first + samples) */
    uint8_t tensor, touched;      /* its tensor; whether it was ever touched */
    uint16_t fetched_by;          /* the partition that fetched it last */
} Object;

typedef struct {
    int64_t objects;
    Object *object;
    const int32_t *object_of; /* object of each sampled line */
    const uint32_t *place;    /* twice the set of each sampled line, plus its home partition */
    int32_t *tags;            /* partition x set x row_ways(ways), the latest used first */
    int64_t dram_free, l2_free, now;
    int32_t stands, whole;    /* small steps that an access stands for, of the `whole` that its object is of; 1 and 1 */
    int32_t latencies, pad;   /* of HBM that a fetch takes in the present launch */
    /* results */
    int64_t *lost;             /* by set: followed lines that were read from HBM again */
    int64_t again;             /* bytes read from HBM again */
    int64_t hbm_read[MAX_TENSORS], hbm_write[MAX_TENSORS];
    int64_t fabric;
    int32_t *side_tags;        /* set x row_ways(side_ways) of the cache at the memory's side */
    const int32_t *side_set;   /* its set of each sampled line */
    int64_t side_free;
    int64_t filled[MAX_TENSORS], drained[MAX_TENSORS]; /* where there is one: bytes that the L2s read of it and wrote to it */
    int64_t covered_ps;        /* coarse steps: how long the loads of the present one may take without being waited for */
    int64_t took_ps, alone_ps; /* coarse steps: what they took, and would have taken had no load been waited for */
} L2State;

typedef struct {
    int64_t bin_ps, from_ps;     /* a bin on the replay's clock, and where the first begins */
    int32_t bins, ctas;
    int64_t *bin_hit, *bin_miss; /* by bin x 64 tensors */
    int32_t *cta_sm;
    int64_t *cta_start, *cta_end; /* by work tile */
    int32_t *order;               /* partition x set x MAX_DEPTH samples, latest first; NULL: not kept */
    uint8_t *seen;                /* partition x sample: whether it was loaded before */
    int64_t samples, first;       /* sampled lines; loads of lines never loaded before */
    int64_t depth[MAX_DEPTH + 1]; /* other loads by depth; the last: deeper */
    int64_t *bin_kept;            /* by bin x 64 tensors: bytes in the L2 as the bin begins; NULL: not kept */
    int64_t kept;                 /* bins of which it is known */
} Trace;

typedef struct {
    int32_t line_bytes, page;        /* bytes of a line, lines of a page */
    int32_t twins, twin_lines;       /* lines of a page in the same set, and how far apart they are */
    int32_t shuffle_256ths, run_pages; /* how far a page is shuffled, in 256ths; pages after which the turn begins anew */
    int32_t sets, stride, placements; /* followed sets of a placement, of how many each is one, placements */
    int32_t pad;
} Sampler;

typedef struct {
    int32_t mode, coef, span, rows, row_stride;
    int32_t turn, turn_coef; /* loop indices of a head where heads come in turn, and from a head to the next; 0: one */
    int32_t skipped;      /* how long `skips` is */
    const int32_t *base;  /* first object of each work tile; NIL for none */
    const int32_t *skips; /* NULL, or by loop index: the work tiles of this block go without the access there */
    const int32_t *block; /* with skips: the block of each work tile */
} Template;

typedef struct {
    int32_t tiles, slots, sms, sm_spread_ppm;
    int32_t static_stride; /* persistent static list: CTA c takes c, c + stride, ...; 0 for a queue */
    int32_t group;         /* work tiles that a CTA takes together from the queue */
    int32_t n_pro, n_loop, n_epi;
    int32_t listed;                /* how long `list` is */
    int32_t queues, pad2;          /* queues of work tiles: of each, the SMs of one partition take every `queues`-th; or 1 */
    Template pro[MAX_TEMPLATES], loop[MAX_TEMPLATES], epi[MAX_TEMPLATES];
    const int32_t *first, *count; /* loop index of each work tile: start and number of steps */
    const uint8_t *side;          /* partition of each SM */
    const uint8_t *down;          /* whether a work tile walks its indices from the last to the first */
    const int32_t *list;          /* NULL: indices run; else index of step s is list[first + s] */
    int64_t step_ps;              /* a step of a CTA that has its SM for itself */
    int64_t start_ps, open_ps;    /* from one work tile to the first loads of the next; beside these, up to its first step */
    int32_t crowds;               /* CTAs of an SM for which it is known how much they slow each other down */
    int32_t parts;                /* steps that are one turn of the kernel's loop, and vary by chance together */
    const int64_t *slow_ppm;      /* of n CTAs on an SM, by n - 1: a step over a lone one's; beyond them, n times */
    int32_t ranks;                /* CTAs of an SM whose shares are known */
    int32_t relaunched;           /* whether a work tile is a CTA of its own, so that a CTA's age begins with it */
    const int32_t *share_ppm;     /* of an SM that holds `ranks` CTAs, by age: rates, their mean a million */
    int32_t step_spread_ppm;      /* a step takes more or less than the mean by up to this */
    int32_t sms_alike;            /* neighbouring SMs that have one speed */
    int32_t waits;                /* latencies of HBM that a CTA waits where a step's loads miss; 0: they are asked for a step ahead */
    int32_t ahead;                /* a queue: whether a CTA claims its next work tile as it begins one, else as it ends one */
    int32_t coarse;               /* small steps that a step stands for; 0: steps are played as they are */
    int32_t walks;                /* coarse: the loop's first templates, which move on; the others stay where they are */
    const int32_t *lead, *trail;  /* coarse: small steps of each work tile's first step, and of its last */
} LaunchPlan;

typedef struct {
    int64_t settle, window, jump; /* steps of a CTA, on average */
    int32_t max_windows, windows;
    int64_t *played, *carried;    /* by window: loads of a step in it; loads before and after it that it stands for, twice */
    int64_t *read, *write;        /* by window x 64 tensors: HBM bytes in it */
    int64_t skipped_ps;
    int64_t took_ps, alone_ps;    /* steps in all windows: what they took, and would have taken had no load been waited for */
    int64_t filled[MAX_TENSORS], drained[MAX_TENSORS]; /* in all windows: as those of the L2 */
    int64_t passed_over;          /* objects outside the loop that were looked at for skipped work tiles */
    uint8_t looped[MAX_TENSORS];  /* tensors that the loop accesses */
} Sampling;

#endif
