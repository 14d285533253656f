// Calls of semi-Markov models (segments.hpp): instances on threads, each whole.
#include "segments.hpp"

#include "parallel.hpp"

using namespace mssvm;

namespace {

void check(const SegmentsCall &c) {
    require(c.labels > 0 && c.longest > 0 && c.hidden >= 0 && c.threads > 0, "segments need labels and lengths.");
    require(c.eps_y >= 0 && c.eps_h >= 0, "temperatures must not be negative.");
    require(!c.moving || c.hidden > 0, "only hidden states can move.");
    require(c.labels < (1 << 15) && c.hidden < (1 << 15), "there are too many labels or hidden states.");
    int64_t n = c.sites.size, k = c.tables_of();
    require(c.unary_at.size == n && c.table_at.size == n * k && c.mu_at.size == n * k && c.span_ptr.size == n + 1,
            "arrays over instances have different sizes.");
    require(c.value.size == n && c.allowed.size == c.unary.size, "values or masks have another size.");
    require(c.mu_unary.empty() || c.mu_unary.size == c.unary.size, "marginals have another size.");
    int64_t spans = c.span_score.size;
    require(c.span_start.size == spans && c.span_stop.size == spans && c.span_label.size == spans &&
                (c.mu_span.size == spans || c.mu_unary.empty()),
            "arrays over spans have different sizes.");
    const int64_t sizes[4] = {c.labels * c.labels, c.longest * c.labels, c.kinds(), c.kinds() * c.hidden};
    for (int64_t b : c.instances) {
        require(b >= 0 && b < n && c.sites[b] > 0, "an instance has no sites.");
        int64_t T = c.sites[b];
        require(T < (int64_t(1) << 31), "an instance has too many sites.");
        int64_t states = T * (c.labels + 2) + 2 * c.labels;
        if (c.hidden) states += T * c.kinds();
        if (c.borders) states += 2 * T * c.labels;
        if (c.wide) states += T * c.longest * c.labels;
        require(c.unary_at[b] >= 0 && c.unary_at[b] + states <= c.unary.size, "scores of states are missing.");
        for (int64_t j = 0; j < k; ++j) {
            int64_t at = c.table_at[b * k + j], mu = c.mu_at[b * k + j];
            require(at >= 0 && at + sizes[j] <= c.tables.size, "scores of tables are missing.");
            require(c.mu_unary.empty() || (mu >= 0 && mu + sizes[j] <= c.mu_tables.size), "marginals are missing.");
        }
        require(c.span_ptr[b] >= 0 && c.span_ptr[b] <= c.span_ptr[b + 1] && c.span_ptr[b + 1] <= spans,
                "spans are out of order.");
        if (c.draws)
            require(c.drawn_at.size == n && c.drawn_at[b] >= 0 && c.drawn_at[b] + c.draws * T <= c.drawn.size,
                    "the array of samples is too small.");
    }
}

}  // namespace

// The nested power sum of the named instances, its derivatives, and samples.
MSSVM_API mssvm_segments(const SegmentsCall *call) {
    return guarded(call, [](const SegmentsCall &c) -> int64_t {
        check(c);
        parallel_for(c.instances.size, int(c.threads), [&](int64_t i) {
            Segmentations segmentations(c);
            segmentations.run(c.instances[i]);
        });
        return 0;
    });
}
