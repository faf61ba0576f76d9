//! Bulk copies between global and shared memory: the tensor memory accelerator.

use std::collections::VecDeque;

use super::access::atomic_result;
use super::address::{Target, resolve};
use super::cta::Cta;
use super::fault::{Fault, FaultKind, Step};
use super::observer::{AccessKind, Agent, AsyncKind, Observer};
use super::tensor_map::{Swizzle, TensorMap};
use super::warp::{Warp, lanes};
use crate::lower::op::{AtomicFn, BulkCopy, BulkTensor, Direction, Space};
use crate::ptx::Type;

/// A copy in flight.
#[derive(Debug)]
pub struct PendingCopy {
    op: u64,
    thread: u32,
    pc: u32,
    direction: Direction,
    shape: Shape,
    shared: u32,
    mbarrier: Option<u32>,
    /// What a store has read, once it has.
    staged: Option<Vec<u8>>,
}

#[derive(Debug)]
enum Shape {
    Tensor { map: Box<TensorMap>, coords: [i64; 5] },
    Linear { global: u64, bytes: u32, ty: Type },
}

/// The bulk groups of a thread.
#[derive(Debug, Default)]
pub struct BulkGroups {
    open: Vec<u64>,
    committed: VecDeque<Vec<u64>>,
}

/// A row of a box: where it begins in the box, and the address of its first element, if the row lies inside the tensor.
struct Row {
    linear: u32,
    address: Option<u64>,
}

impl TensorMap {
    /// The rows of the box at `coords`; the addresses are those of the inner coordinate 0, by arithmetic that wraps round, as the
    /// hardware's does.
    fn rows(&self, coords: &[i64; 5]) -> Vec<Row> {
        let counts = self.box_elements();
        let row_bytes = counts[0] * self.element_bytes();
        let mut rows = Vec::with_capacity((counts[1] * counts[2] * counts[3] * counts[4]) as usize);
        for i4 in 0..counts[4] {
            for i3 in 0..counts[3] {
                for i2 in 0..counts[2] {
                    for i1 in 0..counts[1] {
                        let at = [i1, i2, i3, i4];
                        let mut address = Some(self.address);
                        for dim in 1..self.rank as usize {
                            let c = coords[dim] + i64::from(at[dim - 1]) * i64::from(self.element_strides[dim]);
                            let inside = c >= 0 && (c as u64) < self.dims[dim];
                            address = address.filter(|_| inside).map(|a| a.wrapping_add((c as u64).wrapping_mul(self.strides[dim])));
                        }
                        rows.push(Row { linear: rows.len() as u32 * row_bytes, address });
                    }
                }
            }
        }
        rows
    }

    /// The elements of a row that lie inside, as (index in the box, inner coordinate) runs: first and count.
    fn inner_run(&self, coords: &[i64; 5]) -> (u32, u32, u64) {
        let count = i64::from(self.box_elements()[0]);
        let step = i64::from(self.element_strides[0]);
        let first = if coords[0] < 0 { (-coords[0] + step - 1) / step } else { 0 };
        let beyond = (self.dims[0] as i64 - coords[0] + step - 1) / step;
        let last = beyond.clamp(0, count);
        if first >= last {
            return (0, 0, 0);
        }
        (first as u32, (last - first) as u32, (coords[0] + first * step) as u64)
    }
}

impl<'a, O: Observer> Cta<'a, O> {
    fn read_map(&mut self, raw: u64) -> Step<TensorMap> {
        if !raw.is_multiple_of(64) {
            return Err(Fault::new(FaultKind::Misaligned, format!("the tensor map at 0x{raw:x} is not aligned to 64 bytes")));
        }
        let mut bytes = [0; 128];
        match resolve(raw) {
            Target::Param(offset) => {
                let Some(from) = self.launch.params.get(offset as usize..offset as usize + 128) else {
                    return Err(Fault::new(FaultKind::IllegalAddress, "a tensor map beyond the kernel's parameters"));
                };
                bytes.copy_from_slice(from);
            }
            Target::Global(address) => self.global(address, 128, 64)?.read(address, &mut bytes),
            _ => return Err(Fault::new(FaultKind::IllegalAddress, format!("0x{raw:x} cannot hold a tensor map"))),
        }
        let words = std::array::from_fn(|i| u64::from_le_bytes(std::array::from_fn(|j| bytes[8 * i + j])));
        TensorMap::decode(&words).ok_or_else(|| {
            Fault::new(FaultKind::Protocol, format!("the 128 bytes at 0x{raw:x} are no tensor map that this driver has encoded"))
        })
    }

    pub(super) fn issue_tensor(&mut self, warp: &Warp, copy: &BulkTensor, mask: u32) -> Step<()> {
        for lane in lanes(mask) {
            self.issue_tensor_lane(warp, copy, lane).map_err(|fault| fault.thread(warp.thread(lane)))?;
        }
        Ok(())
    }

    fn issue_tensor_lane(&mut self, warp: &Warp, copy: &BulkTensor, lane: usize) -> Step<()> {
        let map = self.read_map(self.lane_address(warp, copy.map, lane))?;
        if map.rank as usize != copy.coords.len() {
            let message = format!("{} coordinates for a tensor map of rank {}", copy.coords.len(), map.rank);
            return Err(Fault::new(FaultKind::IllegalInstruction, message));
        }
        if map.interleave != 0 {
            return Err(Fault::new(FaultKind::Unsupported, "interleaved tensor maps"));
        }
        let mut coords = [0; 5];
        for (coord, &slot) in coords.iter_mut().zip(&copy.coords) {
            *coord = i64::from(warp.words[slot as usize][lane] as i32);
        }
        check_box(&map, &coords, copy.direction)?;
        let shared = self.shared_address(warp, copy.shared, Space::Shared, lane, map.box_bytes(), 128)?;
        let mbarrier = self.completion_barrier(warp, copy.mbarrier, lane)?;
        let shape = Shape::Tensor { map: Box::new(map), coords };
        self.issue(warp.thread(lane), copy.direction, shape, shared, mbarrier)
    }

    pub(super) fn issue_copy(&mut self, warp: &Warp, copy: &BulkCopy, mask: u32) -> Step<()> {
        for lane in lanes(mask) {
            self.issue_copy_lane(warp, copy, lane).map_err(|fault| fault.thread(warp.thread(lane)))?;
        }
        Ok(())
    }

    fn issue_copy_lane(&mut self, warp: &Warp, copy: &BulkCopy, lane: usize) -> Step<()> {
        let bytes = warp.words[copy.bytes as usize][lane];
        if !bytes.is_multiple_of(16) || bytes == 0 {
            return Err(Fault::new(FaultKind::Protocol, format!("a bulk copy of {bytes} bytes, which is no positive multiple of 16")));
        }
        let shared = self.shared_address(warp, copy.shared, Space::Shared, lane, bytes, 16)?;
        let mut global = self.lane_address(warp, copy.global, lane);
        if let Target::Global(address) = resolve(global) {
            global = address;
        }
        self.global(global, u64::from(bytes), 16)?;
        let mbarrier = self.completion_barrier(warp, copy.mbarrier, lane)?;
        self.issue(warp.thread(lane), copy.direction, Shape::Linear { global, bytes, ty: copy.ty }, shared, mbarrier)
    }

    fn completion_barrier(&mut self, warp: &Warp, address: Option<crate::lower::op::Address>, lane: usize) -> Step<Option<u32>> {
        let Some(address) = address else { return Ok(None) };
        let at = self.shared_address(warp, address, Space::Shared, lane, 8, 8)?;
        self.mbarriers.get(at)?;
        Ok(Some(at))
    }

    fn issue(&mut self, thread: u32, direction: Direction, shape: Shape, shared: u32, mbarrier: Option<u32>) -> Step<()> {
        let op = self.next_op;
        self.next_op += 1;
        let kind = if direction == Direction::Load { AsyncKind::Load } else { AsyncKind::Store };
        self.observer.async_issue(op, thread..thread + 1, self.pc, kind, mbarrier)?;
        if direction != Direction::Load {
            self.bulk.entry(thread).or_default().open.push(op);
        }
        self.copies.push(PendingCopy { op, thread, pc: self.pc, direction, shape, shared, mbarrier, staged: None });
        Ok(())
    }

    pub(super) fn bulk_commit(&mut self, warp: &Warp, mask: u32) {
        for lane in lanes(mask) {
            let groups = self.bulk.entry(warp.thread(lane)).or_default();
            let group = std::mem::take(&mut groups.open);
            groups.committed.push_back(group);
        }
    }

    /// Whether all but the last `pending` bulk groups of the lanes are over, or have read their sources.
    pub(super) fn bulk_wait_over(&mut self, warp: &Warp, mask: u32, pending: u32, read: bool) -> bool {
        let copies = &self.copies;
        let over = |op: u64| copies.iter().find(|copy| copy.op == op).is_none_or(|copy| read && copy.staged.is_some());
        let mut threads = lanes(mask).map(|lane| warp.thread(lane));
        let all_over = threads.all(|thread| {
            self.bulk.get(&thread).is_none_or(|groups| {
                let old = groups.committed.len().saturating_sub(pending as usize);
                groups.committed.iter().take(old).flatten().all(|&op| over(op))
            })
        });
        if !all_over {
            return false;
        }
        for lane in lanes(mask) {
            let thread = warp.thread(lane);
            let Some(groups) = self.bulk.get_mut(&thread) else { continue };
            let old = groups.committed.len().saturating_sub(pending as usize);
            for &op in groups.committed.iter().take(old).flatten() {
                self.observer.async_wait(op, thread..thread + 1, read);
            }
            // A wait for reads leaves the groups to a later wait for writes.
            while !read && groups.committed.len() > pending as usize {
                groups.committed.pop_front();
            }
        }
        true
    }

    /// The next step of copy `at`: a load is one, a store first reads and then writes.
    pub(super) fn step_copy(&mut self, at: usize) -> Step<()> {
        let (thread, pc) = (self.copies[at].thread, self.copies[at].pc);
        self.pc = pc;
        let name = |fault: Box<Fault>| fault.thread(thread).pc(pc);
        if self.copies[at].direction != Direction::Load && self.copies[at].staged.is_none() {
            let data = self.read_shared_box(at).map_err(name)?;
            self.copies[at].staged = Some(data);
            return Ok(());
        }
        let copy = self.copies.remove(at);
        match copy.direction {
            Direction::Load => {
                let bytes = self.load_box(&copy).map_err(name)?;
                self.observer.async_done(copy.op);
                if let Some(mbarrier) = copy.mbarrier {
                    self.observer.mbarrier_arrive(Agent::Async(copy.op), pc, mbarrier, true).map_err(name)?;
                    let complete = self.mbarriers.get(mbarrier).map_err(name)?.complete_tx(bytes);
                    self.note_phase(mbarrier, complete).map_err(name)?;
                }
            }
            direction => {
                let function = if let Direction::Reduce(function) = direction { Some(function) } else { None };
                self.store_box(&copy, function).map_err(name)?;
                self.observer.async_done(copy.op);
            }
        }
        Ok(())
    }

    fn write_shared(&mut self, copy: &PendingCopy, swizzle: Swizzle, at: u32, data: &[u8]) -> Step<()> {
        for (i, chunk) in data.chunks(16).enumerate() {
            let to = swizzle.apply(at + 16 * i as u32);
            self.observer.shared(Agent::Async(copy.op), copy.pc, to, chunk.len() as u32, AccessKind::Write)?;
            self.shared[to as usize..to as usize + chunk.len()].copy_from_slice(chunk);
        }
        self.no_mbarrier(at, data.len() as u32)
    }

    fn load_box(&mut self, copy: &PendingCopy) -> Step<u32> {
        match &copy.shape {
            &Shape::Linear { global, bytes, .. } => {
                let memory = self.global(global, u64::from(bytes), 1)?;
                self.observer.global(Agent::Async(copy.op), copy.pc, memory, global, u64::from(bytes), AccessKind::Read)?;
                let mut data = vec![0; bytes as usize];
                memory.read(global, &mut data);
                self.write_shared(copy, Swizzle::None, copy.shared, &data)?;
                Ok(bytes)
            }
            Shape::Tensor { map, coords } => {
                let element = map.element_bytes();
                let (first, count, inner) = map.inner_run(coords);
                let fill = map.fill_element().to_le_bytes();
                let row_elements = map.box_elements()[0];
                let blank: Vec<u8> = (0..row_elements).flat_map(|_| fill[..element as usize].iter().copied()).collect();
                let rows = map.rows(coords);
                if count == 0 || rows.iter().all(|row| row.address.is_none()) {
                    // An H200 then looks at where the map begins, and faults if that is nowhere.
                    self.global(map.address, u64::from(element), 1)?;
                }
                for row in rows {
                    let mut data = blank.clone();
                    if let Some(address) = row.address.filter(|_| count > 0) {
                        let inside = &mut data[(first * element) as usize..((first + count) * element) as usize];
                        self.read_row(copy, map, address.wrapping_add(inner * u64::from(element)), inside)?;
                    }
                    self.write_shared(copy, map.swizzle, copy.shared + row.linear, &data)?;
                }
                Ok(map.box_bytes())
            }
        }
    }

    /// Reads the elements of a row, `element_strides[0]` apart.
    fn read_row(&mut self, copy: &PendingCopy, map: &TensorMap, address: u64, into: &mut [u8]) -> Step<()> {
        let (element, step) = (map.element_bytes() as usize, map.element_strides[0] as usize);
        let runs: Vec<(u64, &mut [u8])> = if step == 1 {
            vec![(address, into)]
        } else {
            into.chunks_mut(element).enumerate().map(|(i, cell)| (address.wrapping_add((i * step * element) as u64), cell)).collect()
        };
        for (address, cell) in runs {
            let bytes = cell.len() as u64;
            let memory = self.global(address, bytes, 1)?;
            self.observer.global(Agent::Async(copy.op), copy.pc, memory, address, bytes, AccessKind::Read)?;
            memory.read(address, cell);
        }
        Ok(())
    }

    fn read_shared_box(&mut self, at: usize) -> Step<Vec<u8>> {
        let copy = &self.copies[at];
        let (swizzle, bytes) = match &copy.shape {
            Shape::Tensor { map, .. } => (map.swizzle, map.box_bytes()),
            Shape::Linear { bytes, .. } => (Swizzle::None, *bytes),
        };
        let mut data = vec![0; bytes as usize];
        for (i, chunk) in data.chunks_mut(16).enumerate() {
            let from = swizzle.apply(copy.shared + 16 * i as u32);
            self.observer.shared(Agent::Async(copy.op), copy.pc, from, chunk.len() as u32, AccessKind::Read)?;
            chunk.copy_from_slice(&self.shared[from as usize..from as usize + chunk.len()]);
        }
        Ok(data)
    }

    fn store_box(&mut self, copy: &PendingCopy, function: Option<AtomicFn>) -> Step<()> {
        let data = copy.staged.as_deref().unwrap_or_default();
        match &copy.shape {
            &Shape::Linear { global, ty, .. } => self.write_global(copy, global, data, function.map(|f| (f, ty))),
            Shape::Tensor { map, coords } => {
                let element = map.element_bytes();
                let (first, count, inner) = map.inner_run(coords);
                let reduction = function.map(|f| (f, element_type(map.element)));
                for row in map.rows(coords) {
                    let Some(address) = row.address.filter(|_| count > 0) else { continue };
                    let from = (row.linear + first * element) as usize;
                    let inside = &data[from..from + (count * element) as usize];
                    let address = address.wrapping_add(inner * u64::from(element));
                    if map.element_strides[0] == 1 {
                        self.write_global(copy, address, inside, reduction)?;
                        continue;
                    }
                    for (i, cell) in inside.chunks(element as usize).enumerate() {
                        let to = address.wrapping_add(i as u64 * u64::from(map.element_strides[0] * element));
                        self.write_global(copy, to, cell, reduction)?;
                    }
                }
                Ok(())
            }
        }
    }

    fn write_global(&mut self, copy: &PendingCopy, address: u64, data: &[u8], reduction: Option<(AtomicFn, Type)>) -> Step<()> {
        let memory = self.global(address, data.len() as u64, 1)?;
        let kind = if reduction.is_some() { AccessKind::Atomic { write: true } } else { AccessKind::Write };
        self.observer.global(Agent::Async(copy.op), copy.pc, memory, address, data.len() as u64, kind)?;
        let Some((function, ty)) = reduction else {
            memory.write(address, data);
            return Ok(());
        };
        for (i, cell) in data.chunks(ty.bytes() as usize).enumerate() {
            let mut bits = [0; 8];
            bits[..cell.len()].copy_from_slice(cell);
            let value = u64::from_le_bytes(bits);
            memory.update(address + (i * cell.len()) as u64, ty.bytes(), |old| atomic_result(function, ty, old, value, 0));
        }
        Ok(())
    }
}

/// What the hardware asks of a box in the tensor. An H200 was seen to refuse or to do each of these things; of the reductions that [`reduces`]
/// excludes, only those of 16-bit integers were tried.
fn check_box(map: &TensorMap, coords: &[i64; 5], direction: Direction) -> Step<()> {
    let illegal = |message: String| Err(Fault::new(FaultKind::IllegalInstruction, message));
    let element = i64::from(map.element_bytes());
    // PTX ISA, "Bounding Box".
    let into_row = coords[0] * element;
    if into_row % 16 != 0 {
        return illegal(format!("the box begins {into_row} bytes into a row of the tensor, which is no multiple of 16"));
    }
    if direction == Direction::Load {
        return Ok(());
    }
    // CUDA programming guide, on TMA: loads may begin at negative indices, stores may not.
    if coords.iter().any(|&coord| coord < 0) {
        return illegal(format!("a store to a box at the negative coordinates {:?}", &coords[..map.rank as usize]));
    }
    if let Direction::Reduce(function) = direction
        && !reduces(function, element_type(map.element))
    {
        return illegal(format!("{function:?} does not reduce tensors of {:?}", element_type(map.element)));
    }
    // Rows are clipped in whole chunks of 16 bytes. A box beyond another dimension has no row to write.
    let (row, end) = (map.dims[0] as i64 * element, (coords[0] + i64::from(map.box_dims[0])) * element);
    let has_rows = (1..map.rank as usize).all(|dim| coords[dim] < map.dims[dim] as i64);
    if has_rows && row % 16 != 0 && into_row < row && row < end {
        let message = format!("rows of {row} bytes: the store would write beyond their ends, up to a multiple of 16");
        return Err(Fault::new(FaultKind::Protocol, message));
    }
    Ok(())
}

/// Whether `cp.reduce.async.bulk.tensor` takes the operation for elements of this type (PTX ISA, the instruction's table).
fn reduces(function: AtomicFn, ty: Type) -> bool {
    let halves = matches!(ty, Type::F16 | Type::BF16);
    let integers = matches!(ty, Type::U32 | Type::S32 | Type::U64 | Type::S64);
    match function {
        AtomicFn::Add => halves || ty == Type::F32 || integers && ty != Type::S64,
        AtomicFn::Min | AtomicFn::Max => halves || integers,
        AtomicFn::Inc | AtomicFn::Dec => ty == Type::U32,
        _ => integers,
    }
}

/// The PTX type of a tensor map's elements.
fn element_type(element: u32) -> Type {
    match element {
        0 => Type::U8,
        1 => Type::U16,
        2 => Type::U32,
        3 => Type::S32,
        4 => Type::U64,
        5 => Type::S64,
        6 => Type::F16,
        8 => Type::F64,
        9 => Type::BF16,
        _ => Type::F32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rows_that_a_store_writes_must_be_whole_chunks() {
        let f16 = 6;
        let map = TensorMap::new(f16, 2, 4096, &[12, 6], &[32], &[8, 8], &[1; 5], 0, 0, 0).unwrap();
        let store = |x, y| check_box(&map, &[x, y, 0, 0, 0], Direction::Store).map_err(|fault| fault.kind);
        assert_eq!(store(0, 5), Ok(()), "within the rows");
        assert_eq!(store(8, 5), Err(FaultKind::Protocol), "beyond their ends");
        assert_eq!(store(8, 6), Ok(()), "below the last row");
        assert_eq!(store(16, 0), Ok(()), "beside the rows");
    }
}
