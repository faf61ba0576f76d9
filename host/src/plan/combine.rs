//! From parts and an output to a launch of the kernel that combines.

use std::fmt::Display;

use hopper_attention_kernels::config::{COMBINE_COLUMNS, COMBINE_THREADS, MAX_PARTS};
use hopper_attention_kernels::fast_divide::FastDivisor;
use hopper_attention_kernels::params::{CombineParams, Part, TensorAddress};

use super::map::{Mapped, Role, describe};
use super::region::Region;
use super::shape::check_one_a_head;
use super::{arrays, check_head_dim, lse_region};
use crate::raw::{self, Array, Lse, Tensor4};
use crate::{DType, Dim, Error};

/// A launch of a kernel that combines, but for the device and the stream.
#[derive(Debug)]
pub(crate) struct CombinePlan {
    pub dtype: DType,
    pub params: Box<CombineParams>,
    /// What is read of each part: O and LSE.
    #[cfg_attr(not(feature = "cust"), expect(dead_code, reason = "read where addresses are checked"))]
    pub parts: Vec<(Region, Region)>,
    /// What is written of O and LSE, and read of the sinks.
    #[cfg_attr(not(feature = "cust"), expect(dead_code, reason = "read where addresses are checked"))]
    pub others: [Option<Region>; 3],
}

impl CombinePlan {
    /// Checks everything that can be checked without a device. `None` if there is no row to write.
    pub fn new(parts: &[raw::Part], o: &Tensor4, lse: Option<Lse>, sinks: Option<Array>) -> Result<Option<Self>, Error> {
        Self::check_parts(parts, o)?;
        let [batch, seqlen, heads, head_dim] = o.layout.shape;
        if let Some(sinks) = sinks {
            check_one_a_head("sinks.len", sinks, heads)?;
        }
        if o.layout.is_empty() {
            return Ok(None);
        }
        let items = [seqlen, heads, head_dim / COMBINE_COLUMNS as usize]
            .into_iter()
            .try_fold(batch as u64, |n, extent| n.checked_mul(extent as u64));
        let Some(items) = items.filter(|&items| items <= u64::from(FastDivisor::MAX)) else {
            let value = format!("{:?}", o.layout.shape);
            return Err(Error::unsupported("o.shape", value, format!("at most {} pieces of 8 elements", FastDivisor::MAX)));
        };
        let rows = items / (head_dim / COMBINE_COLUMNS as usize) as u64;
        let output = describe(&"o", o, 1, Role::Output)?;
        let lse = lse.map(|lse| lse_region(&"lse", lse, rows)).transpose()?;
        let sinks = sinks.map(|sinks| arrays::region("sinks", sinks)).transpose()?;
        let mut described = Vec::with_capacity(parts.len());
        for (i, part) in parts.iter().enumerate() {
            // A name is put together only for an error.
            let mapped = describe(&format_args!("parts[{i}].o"), &part.o, 1, Role::Input)?;
            described.push((mapped.region, lse_region(&format_args!("parts[{i}].lse"), part.lse, rows)?));
        }
        check_overlaps(&described, &output, lse.as_ref(), sinks.as_ref())?;
        // No extent exceeds `items`.
        let divisor = |extent: usize| FastDivisor::new(extent as u32).expect("from 1 to FastDivisor::MAX");
        let mut params = Box::new(CombineParams {
            parts: [Part::default(); MAX_PARTS],
            o: address(&output.region),
            lse: lse.map_or(0, |lse| lse.bytes().start),
            sinks: sinks.map_or(0, |sinks| sinks.bytes().start),
            count: parts.len() as u32,
            items: items as u32,
            chunks: divisor(head_dim / COMBINE_COLUMNS as usize),
            seqlen: divisor(seqlen),
            num_heads: divisor(heads),
            reserved: 0,
        });
        for (part, (o, lse)) in params.parts.iter_mut().zip(&described) {
            *part = Part { o: address(o), lse: lse.bytes().start };
        }
        Ok(Some(Self { dtype: o.dtype, params, parts: described, others: [Some(output.region), lse, sinks] }))
    }

    /// What `count` parts are answered with.
    pub fn wrong_count(count: usize) -> Error {
        Error::invalid("parts", count, format!("from 1 to {MAX_PARTS} of them"))
    }

    /// Checks what can be checked before there is memory for O, which is to be like `o`.
    pub fn check_parts(parts: &[raw::Part], o: &Tensor4) -> Result<(), Error> {
        if parts.is_empty() || parts.len() > MAX_PARTS {
            return Err(Self::wrong_count(parts.len()));
        }
        check_head_dim("o.head_dim", o.layout.extent(Dim::HeadDim))?;
        parts.iter().enumerate().try_for_each(|(i, part)| check_alike(&format_args!("parts[{i}].o"), &part.o, o))
    }

    /// CTAs: as many as the device runs at once, as far as there is work.
    pub fn grid(&self, multiprocessors: u32) -> u32 {
        const CTAS_PER_MULTIPROCESSOR: u32 = 2048 / COMBINE_THREADS;
        self.params.items.div_ceil(COMBINE_THREADS).min(multiprocessors * CTAS_PER_MULTIPROCESSOR)
    }
}

fn address(region: &Region) -> TensorAddress {
    let [batch_stride, row_stride, head_stride] = region.strides();
    TensorAddress { address: region.bytes().start, batch_stride, row_stride, head_stride }
}

/// A part has the output's dtype and shape.
fn check_alike(name: &dyn Display, part: &Tensor4, o: &Tensor4) -> Result<(), Error> {
    if part.dtype != o.dtype {
        return Err(Error::invalid(format!("{name}.dtype"), part.dtype.name(), format!("{}, the dtype of o", o.dtype.name())));
    }
    if part.layout.shape != o.layout.shape {
        let requirement = format!("{:?}, the shape of o", o.layout.shape);
        return Err(Error::invalid(format!("{name}.shape"), format!("{:?}", part.layout.shape), requirement));
    }
    Ok(())
}

/// No two rows of O may share memory, and neither O nor LSE may lie in anything else.
fn check_overlaps(parts: &[(Region, Region)], o: &Mapped, lse: Option<&Region>, sinks: Option<&Region>) -> Result<(), Error> {
    super::check_rows_apart(o)?;
    let outputs = || [("o", Some(&o.region)), ("lse", lse)].into_iter().filter_map(|(name, output)| Some((name, output?)));
    for (i, (part, part_lse)) in parts.iter().enumerate() {
        for (name, output) in outputs() {
            super::check_apart(name, output, &format_args!("parts[{i}].o"), part)?;
            super::check_apart(name, output, &format_args!("parts[{i}].lse"), part_lse)?;
        }
    }
    if let Some(sinks) = sinks {
        outputs().try_for_each(|(name, output)| super::check_apart(name, output, &"sinks", sinks))?;
    }
    lse.map_or(Ok(()), |lse| super::check_apart("lse", lse, &"o", &o.region))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Layout;

    const O: u64 = 0x10_0000;
    const LSE: u64 = 0x20_0000;
    const SINKS: u64 = 0x30_0000;

    fn tensor(address: u64) -> Tensor4 {
        Tensor4 { address, dtype: DType::F16, layout: Layout::bshd([2, 7, 3, 72]) }
    }

    fn lse(address: u64) -> Lse {
        Lse { address, len: 2 * 7 * 3 }
    }

    fn parts(count: usize) -> Vec<raw::Part> {
        (1..=count as u64).map(|i| raw::Part { o: tensor(O + i * 0x1000_0000), lse: lse(LSE + i * 0x1000_0000) }).collect()
    }

    #[track_caller]
    fn refused(parts: &[raw::Part], o: &Tensor4, lse: Option<Lse>, expected: &str) {
        refused_with(parts, o, lse, None, expected);
    }

    #[track_caller]
    fn refused_with(parts: &[raw::Part], o: &Tensor4, lse: Option<Lse>, sinks: Option<Array>, expected: &str) {
        match CombinePlan::new(parts, o, lse, sinks) {
            Err(Error::Invalid { field, .. } | Error::Unsupported { field, .. }) if field == expected => {}
            other => panic!("expected {expected} to be refused, got {other:?}"),
        }
    }

    #[test]
    fn a_plain_problem() {
        let plan = CombinePlan::new(&parts(2), &tensor(O), Some(lse(LSE)), None).unwrap().unwrap();
        let params = &plan.params;
        assert_eq!((params.count, params.items, params.lse), (2, 2 * 7 * 3 * 9, LSE));
        assert_eq!([params.chunks, params.seqlen, params.num_heads].map(|divisor| divisor.divisor()), [9, 7, 3]);
        assert_eq!(params.o, TensorAddress { address: O, batch_stride: 7 * 3 * 144, row_stride: 3 * 144, head_stride: 144 });
        assert_eq!(params.parts[1].lse, LSE + 0x2000_0000);
        assert_eq!((plan.grid(132), plan.grid(0), params.sinks), (2, 0, 0));
    }

    #[test]
    fn sinks() {
        let sinks = |address, len| Some(Array { address, len });
        let (two, o, lse) = (parts(2), tensor(O), Some(lse(LSE)));
        let plan = CombinePlan::new(&two, &o, lse, sinks(SINKS, 3)).unwrap().unwrap();
        assert_eq!(plan.params.sinks, SINKS);
        refused_with(&two, &o, lse, sinks(SINKS, 2), "sinks.len");
        refused_with(&two, &o, lse, sinks(SINKS, 4), "sinks.len");
        refused_with(&two, &o, lse, sinks(SINKS + 2, 3), "sinks.address");
        refused_with(&two, &o, lse, sinks(0, 3), "sinks.address");
        refused_with(&two, &o, lse, sinks(u64::MAX - 7, 3), "sinks.len");
        refused_with(&two, &o, lse, sinks(O + 64, 3), "o");
        refused_with(&two, &o, lse, sinks(LSE - 8, 3), "lse");
        // What is read may be shared.
        assert!(CombinePlan::new(&two, &o, lse, sinks(two[1].lse.address, 3)).is_ok());
    }

    #[test]
    fn what_is_refused() {
        let (two, o) = (parts(2), tensor(O));
        refused(&[], &o, None, "parts");
        refused(&parts(MAX_PARTS + 1), &o, None, "parts");
        refused(&two, &Tensor4 { layout: Layout::bshd([2, 7, 3, 71]), ..o }, None, "o.head_dim");
        refused(&two, &Tensor4 { layout: Layout::bshd([2, 8, 3, 72]), ..o }, None, "parts[0].o.shape");
        refused(&two, &Tensor4 { dtype: DType::Bf16, ..o }, None, "parts[0].o.dtype");
        refused(&two, &tensor(O + 8), None, "o.address");
        refused(&two, &tensor(0), None, "o.address");
        refused(&two, &tensor(two[1].o.address), None, "o");
        refused(&two, &tensor(two[1].lse.address & !15), None, "o");
        refused(&two, &o, Some(lse(two[0].lse.address + 4)), "lse");
        refused(&two, &o, Some(lse(O + 64)), "lse");
        refused(&two, &o, Some(Lse { len: 41, ..lse(LSE) }), "lse.len");
        let mut short = parts(2);
        short[1].lse.len = 1;
        refused(&short, &o, None, "parts[1].lse.len");
        let mut null = parts(1);
        null[0].lse.address = 0;
        refused(&null, &o, None, "parts[0].lse.address");
        let huge = Tensor4 { layout: Layout::bshd([1 << 20, 1 << 12, 1, 8]), ..o };
        refused(&[raw::Part { o: huge, lse: lse(LSE) }], &huge, None, "o.shape");
    }

    #[test]
    fn without_rows_there_is_nothing_to_do() {
        let empty = Tensor4 { address: 0, dtype: DType::F16, layout: Layout::bshd([2, 0, 3, 64]) };
        let part = raw::Part { o: empty, lse: Lse { address: 0, len: 0 } };
        assert!(CombinePlan::new(&[part], &empty, None, None).unwrap().is_none());
    }
}
