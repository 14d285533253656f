// PNG's row filters, undone: rows were written as differences to a guess from neighbouring bytes.
#include <cstdlib>

#include "boundary.hpp"

using namespace mssvm;

namespace {

struct Unfilter {
    int64_t bytes, height, width, step;  // `width`: bytes of a row; `step`: bytes of a pixel
    Bytes8 lines, out;                   // rows of a filter's number and `width` bytes; the unfiltered bytes alone
};

enum Filter : uint8_t { NONE, LEFT, UP, AVERAGE, PAETH };

// Paeth's predictor: of left, up and corner the one nearest to left + up - corner.
int paeth(int left, int up, int corner) {
    int to_left = std::abs(up - corner), to_up = std::abs(left - corner), to_corner = std::abs(left + up - 2 * corner);
    if (to_left <= to_up && to_left <= to_corner) return left;
    return to_up <= to_corner ? up : corner;
}

}  // namespace

MSSVM_API mssvm_png_unfilter(const Unfilter *call) {
    return guarded(call, [](const Unfilter &c) -> int64_t {
        require(c.height >= 0 && c.width >= 0 && c.step >= 1, "a picture has a negative size.");
        // By division: products of corrupt sizes could overflow and match by chance.
        bool fits =
            c.height == 0 ? c.lines.empty() : c.lines.size % c.height == 0 && c.lines.size / c.height - 1 == c.width;
        require(fits, "rows and sizes of a picture differ.");
        require(c.out.size == c.lines.size - c.height, "the picture's array has another size.");
        for (int64_t i = 0; i < c.height; ++i) {
            const uint8_t *line = c.lines.data + i * (c.width + 1);
            uint8_t *row = c.out.data + i * c.width;
            const uint8_t *above = i > 0 ? row - c.width : nullptr;
            for (int64_t j = 0; j < c.width; ++j) {
                int left = j >= c.step ? row[j - c.step] : 0;
                int up = above ? above[j] : 0;
                int guess = 0;
                switch (line[0]) {
                    case LEFT: guess = left; break;
                    case UP: guess = up; break;
                    case AVERAGE: guess = (left + up) / 2; break;
                    case PAETH: guess = paeth(left, up, above && j >= c.step ? above[j - c.step] : 0); break;
                }
                row[j] = uint8_t(line[j + 1] + guess);
            }
        }
        return 0;
    });
}
