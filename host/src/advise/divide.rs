//! How a capacity is divided, so that as much as possible is answered from it.
//!
//! Always true: parts sum to at most the capacity; no part is larger than what its demand can use.
//! [`by_gain`] gives each next piece to whom it gains most; a curve that gains nothing before a
//! certain size counts by the mean of the way there (its concave hull), so that such a working set
//! is not overlooked. [`by_weight`] gives all what they need where that fits, else the same for
//! each weight. Deliberately absent: where curves and weights come from.

/// So many hits a second with so many blocks; both grow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    pub blocks: u64,
    pub hits: f64,
}

/// One piece of a hull.
#[derive(Clone, Copy)]
struct Piece {
    demand: usize,
    blocks: u64,
    gain: f64,
}

impl Piece {
    fn by_block(&self) -> f64 {
        self.gain / self.blocks as f64
    }
}

/// The points of a curve that no line between two others lies above.
fn hull(points: &[Point]) -> Vec<Point> {
    let mut hull = vec![Point {
        blocks: 0,
        hits: 0.0,
    }];
    for &point in points {
        let last = hull[hull.len() - 1];
        if point.blocks <= last.blocks || point.hits <= last.hits {
            continue;
        }
        while let [.., before, last] = hull[..] {
            let slope =
                |from: Point, to: Point| (to.hits - from.hits) / (to.blocks - from.blocks) as f64;
            if slope(before, last) > slope(last, point) {
                break;
            }
            hull.pop();
        }
        hull.push(point);
    }
    hull
}

/// Parts of `capacity` blocks, one for each curve.
pub fn by_gain(curves: &[Vec<Point>], capacity: u64) -> Vec<u64> {
    let mut pieces: Vec<Piece> = Vec::new();
    for (demand, points) in curves.iter().enumerate() {
        let hull = hull(points);
        pieces.extend(hull.windows(2).map(|two| Piece {
            demand,
            blocks: two[1].blocks - two[0].blocks,
            gain: two[1].hits - two[0].hits,
        }));
    }
    // Stable: the pieces of one hull stay in their order.
    pieces.sort_by(|a, b| b.by_block().total_cmp(&a.by_block()));
    let mut parts = vec![0; curves.len()];
    let mut left = capacity;
    for piece in pieces {
        let blocks = piece.blocks.min(left);
        parts[piece.demand] += blocks;
        left -= blocks;
    }
    parts
}

/// Hits a second of a curve with so many blocks.
pub fn hits_at(points: &[Point], blocks: u64) -> f64 {
    let next = points.partition_point(|point| point.blocks <= blocks);
    let before = next.checked_sub(1).map(|at| points[at]);
    before.map_or(0.0, |point| point.hits)
}

/// Parts of `capacity`, for needs with weights.
pub fn by_weight(needs: &[(u64, u32)], capacity: u64) -> Vec<u64> {
    let mut parts = vec![0; needs.len()];
    let mut open: Vec<usize> = (0..needs.len()).collect();
    let mut left = capacity;
    loop {
        let weights: u64 = open.iter().map(|at| u64::from(needs[*at].1)).sum();
        let fair = |at: usize| match weights {
            0 => 0,
            _ => (u128::from(left) * u128::from(needs[at].1) / u128::from(weights)) as u64,
        };
        let (met, short): (Vec<usize>, Vec<usize>) =
            open.iter().partition(|at| needs[**at].0 <= fair(**at));
        if met.is_empty() {
            for at in short {
                parts[at] = fair(at);
            }
            return parts;
        }
        for at in met {
            parts[at] = needs[at].0;
            left -= needs[at].0;
        }
        open = short;
    }
}
