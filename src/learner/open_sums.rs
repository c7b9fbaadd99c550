//! Products with the 0/1 matrix of open rectifiers, without multiplications.
//!
//! In a network with one output, the gradient by a unit of the last hidden layer is the row's gradient times the unit's weight
//! where the unit's rectifier is open, and 0 where it is closed. So the two products of the backward pass with this gradient are sums
//! of the other matrix' rows, over the open units or over the rows in which a unit is open. Four neighbours have only sixteen such
//! sums. They are computed once, and one addition then takes the place of four multiplications and additions (Arlazarov, Dinic,
//! Kronrod and Faradzhev, 1970: "the four Russians").

use std::ops::Range;

use multiversion::multiversion;

/// Number of columns that are summed together.
pub const LANES: usize = 16;
/// Number of these that are handed over together, because rows of a matrix are written faster in longer pieces.
const STRIPE: usize = 4;
/// Number of neighbours whose sums are tabulated.
const GROUP: usize = 4;
const SUMS: usize = 1 << GROUP;
/// Number of groups whose sums fit the first cache together.
const CACHED: usize = 16;
/// Number of results summed side by side, because each addition to one waits for the one before. Their subsets are one load.
const SIDE: usize = 4;

/// Sums of as many columns. Aligned, because a load across two lines of the cache takes twice as long.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub struct Lanes(pub [f32; LANES]);

impl Lanes {
    const ZERO: Self = Self([0.0; LANES]);

    fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(sum, x)| *sum += x);
    }
}

/// The sums of all subsets of a group; bit `i` of a subset is its member `i`.
type Subsets = [Lanes; SUMS];

/// Which members of each group are open, for each result: `[groups, results]`, the subset in the upper four bits.
#[derive(Debug, Default)]
pub struct Open {
    subsets: Vec<u8>,
    results: usize,
    /// Memory of [`Open::by_row`].
    marks: Vec<u8>,
}

impl Open {
    /// Sums are over the units of a row: a result for each row.
    ///
    /// # Shapes
    /// - rectified: `[rows, units]`
    pub fn by_row(&mut self, rectified: &[f32], units: usize) {
        self.results = rectified.len() / units;
        self.subsets.resize(units.div_ceil(GROUP) * self.results, 0);
        subsets_of_rows(rectified, units, &mut self.marks, &mut self.subsets);
    }

    /// Sums are over the rows in which a unit is open: a result for each unit.
    ///
    /// # Shapes
    /// - rectified: `[rows, units]`
    pub fn by_unit(&mut self, rectified: &[f32], units: usize) {
        self.results = units;
        self.subsets.resize((rectified.len() / units).div_ceil(GROUP) * units, 0);
        subsets_of_units(rectified, units, &mut self.subsets);
    }
}

/// The bit of each member of a group in a subset.
const BITS: [u8; GROUP] = [16, 32, 64, 128];

/// Writes the subset of each group of units, for each row; `marks` is memory for one of them.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx512bw", "x86_64+avx2"))]
fn subsets_of_rows(rectified: &[f32], units: usize, marks: &mut Vec<u8>, subsets: &mut [u8]) {
    let rows = rectified.len() / units;
    marks.clear();
    marks.resize(units.next_multiple_of(GROUP), 0);
    for (row, rectified) in rectified.chunks_exact(units).enumerate() {
        marks.iter_mut().zip(rectified).for_each(|(mark, x)| *mark = u8::from(*x > 0.0));
        let (groups, _) = marks.as_chunks::<GROUP>();
        for (subset, group) in subsets[row..].iter_mut().step_by(rows).zip(groups) {
            // The product has the four bytes' lowest bits beside each other, at the top.
            *subset =
                (u32::from_le_bytes(*group).wrapping_mul(1 << 28 | 1 << 21 | 1 << 14 | 1 << 7) >> 24) as u8 & 0xF0;
        }
    }
}

/// Writes the subset of each group of rows, for each unit.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx512bw", "x86_64+avx2"))]
fn subsets_of_units(rectified: &[f32], units: usize, subsets: &mut [u8]) {
    for (subsets, group) in subsets.chunks_exact_mut(units).zip(rectified.chunks(GROUP * units)) {
        subsets.fill(0);
        for (row, bit) in group.chunks_exact(units).zip(BITS) {
            subsets.iter_mut().zip(row).for_each(|(subset, x)| *subset |= if *x > 0.0 { bit } else { 0 });
        }
    }
}

/// Memory of the sums, kept from one update to the next.
#[derive(Debug, Default)]
pub struct OpenSums {
    subsets: Vec<Subsets>,
    sums: Vec<Lanes>,
}

impl OpenSums {
    /// Computes, for each result of `open`, the sum of those rows of `matrix`, times their factors, that are open in it; hands
    /// over the sums of at most [`STRIPE`] times [`LANES`] columns at a time, with the range of these columns.
    ///
    /// # Shapes
    /// - matrix: `[factors, width]`; `open` has one member for each factor; handed over: `[columns / LANES, results]`
    pub fn each(&mut self, matrix: &[f32], factors: &[f32], open: &Open, mut take: impl FnMut(Range<usize>, &[Lanes])) {
        let (results, width) = (open.results, matrix.len() / factors.len());
        assert_eq!(open.subsets.len(), factors.len().div_ceil(GROUP) * results, "one member for each factor");
        for stripe in stretches(0..width, STRIPE * LANES) {
            self.sums.clear();
            self.sums.resize(stripe.len().div_ceil(LANES) * results, Lanes::ZERO);
            for (columns, sums) in stretches(stripe.clone(), LANES).zip(self.sums.chunks_exact_mut(results)) {
                let pieces = matrix.chunks(CACHED * GROUP * width).zip(factors.chunks(CACHED * GROUP));
                for ((rows, factors), open) in pieces.zip(open.subsets.chunks(CACHED * results)) {
                    self.subsets.resize(factors.len().div_ceil(GROUP), [Lanes::ZERO; SUMS]);
                    tabulate(rows, factors, columns.clone(), &mut self.subsets);
                    add(&self.subsets, open, sums);
                }
            }
            take(stripe, &self.sums);
        }
    }
}

/// Returns the stretches of a range, `length` each; the last may be shorter.
pub fn stretches(range: Range<usize>, length: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(length).map(move |first| first..end.min(first + length))
}

/// Writes the sums of all subsets of each group, of at most [`LANES`] columns of the rows times their factors.
///
/// # Shapes
/// - rows: `[factors, width]`, subsets: `[factors / GROUP]`, rounded up
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2"))]
fn tabulate(rows: &[f32], factors: &[f32], columns: Range<usize>, subsets: &mut [Subsets]) {
    let width = rows.len() / factors.len();
    let groups = rows.chunks(GROUP * width).zip(factors.chunks(GROUP));
    for (subsets, (rows, factors)) in subsets.iter_mut().zip(groups) {
        let mut members = [Lanes::ZERO; GROUP];
        for ((member, row), factor) in members.iter_mut().zip(rows.chunks_exact(width)).zip(factors) {
            member.0.iter_mut().zip(&row[columns.clone()]).for_each(|(x, y)| *x = y * factor);
        }
        // Of the four members the first two are the low bits of a subset, the others the high ones.
        let (subsets_by_high, _) = subsets.as_chunks_mut::<4>();
        for lane in 0..LANES {
            let [a, b, c, d] = [0, 1, 2, 3].map(|i: usize| members[i].0[lane]);
            for (subsets, high) in subsets_by_high.iter_mut().zip([0.0, c, d, c + d]) {
                for (subset, low) in subsets.iter_mut().zip([0.0, a, b, a + b]) {
                    subset.0[lane] = low + high;
                }
            }
        }
    }
}

/// Adds to each result, for each group, the sum of the subset that is open.
///
/// # Shapes
/// - subsets: `[groups]`, open: `[groups, results]`, sums: `[results]`
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2"))]
fn add(subsets: &[Subsets], open: &[u8], sums: &mut [Lanes]) {
    let results = sums.len();
    let (blocks, rest) = sums.as_chunks_mut::<SIDE>();
    let mut at = 0;
    for block in blocks {
        let mut sums = *block;
        for (subsets, open) in subsets.iter().zip(open.chunks_exact(results)) {
            let open = u32::from_le_bytes(*open[at..].first_chunk::<SIDE>().expect("a subset for each result"));
            let side = sums.iter_mut().enumerate();
            side.for_each(|(i, sums)| sums.add(&subsets[(open >> (8 * i + 4)) as usize % SUMS]));
        }
        *block = sums;
        at += SIDE;
    }
    for sums in rest {
        let all = subsets.iter().zip(open.chunks_exact(results));
        all.for_each(|(subsets, open)| sums.add(&subsets[usize::from(open[at] >> 4)]));
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shapes on both sides of every block, chunk and group. All numbers are small integers, so that sums are exact in any order.
    #[test]
    fn sums_are_the_products_with_zeros_and_ones() {
        let (mut by_row, mut by_unit, mut sums) = (Open::default(), Open::default(), OpenSums::default());
        for (rows, units, width) in
            [(1, 1, 1), (13, 7, 5), (6, 64, 16), (131, 70, 33), (67, 129, 17), (3, 4, 48), (5, 9, 150)]
        {
            let number = |i: usize, step: usize| ((i * step) % 23) as f32 - 11.0;
            let rectified: Vec<f32> = (0..rows * units).map(|i| number(i, 37).max(0.0)).collect();
            let check = |open: &Open, sums: &mut OpenSums, members: usize, is_open: &dyn Fn(usize, usize) -> bool| {
                let factors: Vec<f32> = (0..members).map(|i| number(i, 5)).collect();
                let matrix: Vec<f32> = (0..members * width).map(|i| number(i, 17)).collect();
                let mut out = vec![f32::NAN; open.results * width];
                sums.each(&matrix, &factors, open, |columns, sums| {
                    for (columns, sums) in stretches(columns, LANES).zip(sums.chunks_exact(open.results)) {
                        for (row, sums) in out.chunks_exact_mut(width).zip(sums) {
                            row[columns.clone()].copy_from_slice(&sums.0[..columns.len()]);
                        }
                    }
                });
                for (result, row) in out.chunks_exact(width).enumerate() {
                    for (column, &sum) in row.iter().enumerate() {
                        let open = (0..members).filter(|&member| is_open(result, member));
                        let expected: f32 = open.map(|member| factors[member] * matrix[member * width + column]).sum();
                        assert_eq!(sum, expected, "result {result}, column {column} of {rows} x {units} x {width}");
                    }
                }
            };
            by_row.by_row(&rectified, units);
            check(&by_row, &mut sums, units, &|row, unit| rectified[row * units + unit] > 0.0);
            by_unit.by_unit(&rectified, units);
            check(&by_unit, &mut sums, rows, &|unit, row| rectified[row * units + unit] > 0.0);
        }
    }
}
