//! From a row of the table, the kernel's generic events or the configuration to the events that are opened.

use std::collections::BTreeMap;

use crate::sort::small::Gather as _;

use super::encoding::{Encoding, Pmu};
use super::identity::{Cpu, CpuId};
use super::table::{Code, Core};
use super::{
    Capability, Component, OverrideError, Overrides, Quantity, Role, RoleEvent, Source, syntax,
};

/// What the events of a role add up.
pub(super) fn quantity(role: Role) -> Quantity {
    use Role::*;
    match role {
        Cycles
        | CyclesCoreScope
        | LoadWalkCycles
        | StoreWalkCycles
        | DsideWalkCyclesCombined
        | EptWalk
        | StallBackendTlb => Quantity::Cycles,
        LoadWalkPending | StoreWalkPending => Quantity::Occupancy,
        PreciseLoad | PreciseStore | PreciseLoadAlt | PreciseStoreAlt => Quantity::Samples,
        LoadWalksCompleted | StoreWalksCompleted | DsideWalksCombined | DsideTableWalks
        | ItlbWalk | L1dTlbRefillRd | L1dTlbRefillWr | DtlbMiss => Quantity::Count,
    }
}

/// The published events of a core type.
pub(super) fn of_row(
    row: &Core,
    pmu: &Pmu,
    identity: &CpuId,
) -> Result<BTreeMap<Role, RoleEvent>, OverrideError> {
    let mut roles = BTreeMap::new();
    for event in row.family.events {
        let mut encoding = match event.code {
            Code::Raw(config) => Some(Encoding::raw(pmu, config)),
            Code::Generic(perf_type, config) => {
                Some(syntax::generic(pmu, false, perf_type, config))
            }
            Code::OtherPmu(text) => {
                syntax::parse(text, &identity.pmus.iter().collect::<Vec<_>>(), &[])
                    .map_err(|error| OverrideError {
                        role: event.role,
                        error,
                    })?
                    .pop()
            }
            Code::Sum(_) => None,
        };
        let mut components = Vec::new();
        if let Code::Sum(of) = event.code {
            let component = |&(name, config): &(&str, u64)| Component {
                name: name.to_owned(),
                encoding: Encoding::raw(pmu, config),
            };
            components.extend(of.iter().map(component));
        }
        if let (Some(encoding), Quantity::Samples, Code::Raw(_)) =
            (&mut encoding, quantity(event.role), event.code)
        {
            encoding.precise_ip = PRECISE;
            encoding.config1 = event.min_latency.into();
        }
        let complete = event.complete;
        let quantity = match (event.role, event.occupancy) {
            (Role::EptWalk, _) if event.name.ends_with("PENDING") => Quantity::Occupancy,
            (_, true) => Quantity::Occupancy,
            (role, false) => quantity(role),
        };
        roles.insert(
            event.role,
            RoleEvent {
                name: event.name.to_owned(),
                encoding,
                components,
                counters: event.counters.numbers(),
                quantity,
                gives_data_address: event.address,
                filter: event.filter,
                complete,
                errata: event.errata.to_owned(),
                source: Source::Table,
            },
        );
    }
    Ok(roles)
}

/// `precise_ip` of sampled events: the sample belongs to the exact instruction, from which its data address is taken.
const PRECISE: u8 = 2;

/// The kernel's generic events, for a core without published events.
pub(super) fn generic(pmu: &Pmu, hybrid: bool) -> BTreeMap<Role, RoleEvent> {
    let named = [
        (Role::Cycles, "cycles"),
        (Role::LoadWalksCompleted, "dTLB-load-misses"),
        (Role::StoreWalksCompleted, "dTLB-store-misses"),
    ];
    named
        .into_iter()
        .filter_map(|(role, name)| {
            let (_, perf_type, config) = syntax::GENERIC
                .into_iter()
                .find(|(known, ..)| *known == name)?;
            let encoding = syntax::generic(pmu, hybrid, perf_type, config);
            Some((
                role,
                RoleEvent::simple(role, name, encoding, Source::Generic),
            ))
        })
        .gather()
}

/// Whether the PMU is one of the cores' own.
pub(super) fn is_core_pmu(name: &str, cores: &[&Pmu]) -> bool {
    cores.iter().any(|core| core.name == name)
}

/// The configured events, one entry per role and PMU.
pub(super) fn configured(
    identity: &CpuId,
    overrides: &Overrides,
    cores: &[&Pmu],
) -> Result<Vec<(Role, RoleEvent)>, OverrideError> {
    let mut events = Vec::new();
    for (&role, text) in &overrides.0 {
        let sampled = quantity(role) == Quantity::Samples;
        // Counts must come from the core itself; samples may come from a separate unit.
        let beside = identity
            .pmus
            .iter()
            .filter(|pmu| sampled && pmu.present != Some(false));
        let beside = beside.filter(|pmu| !is_core_pmu(&pmu.name, cores));
        let usable: Vec<&Pmu> = cores.iter().copied().chain(beside).collect();
        let list =
            syntax::parse(text, &usable, cores).map_err(|error| OverrideError { role, error })?;
        for mut encoding in list {
            let on_core = is_core_pmu(&encoding.pmu, cores);
            let x86 = matches!(identity.cpu, Cpu::X86 { .. });
            if sampled && on_core && x86 && encoding.precise_ip == 0 {
                encoding.precise_ip = PRECISE;
            }
            events.push((
                role,
                RoleEvent::simple(role, text, encoding, Source::Configuration),
            ));
        }
    }
    Ok(events)
}

/// Capability of the core with the configured events: as published, unless they add something.
pub(super) fn capability(
    published: Capability,
    roles: &BTreeMap<Role, RoleEvent>,
    given: &[Role],
) -> Capability {
    use Role::*;
    // What a generic event counts on an unknown core is unknown, so it adds no capability.
    let has = |role: Role| {
        roles
            .get(&role)
            .is_some_and(|event| event.source != Source::Generic)
    };
    let ladder = [
        (
            Capability::TrueCyclesLoadStoreSeparate,
            [LoadWalkCycles, StoreWalkCycles],
        ),
        (
            Capability::LoadCyclesPlusAllDsideCycles,
            [LoadWalkCycles, DsideWalkCyclesCombined],
        ),
        (
            Capability::CombinedDsideCyclesOnly,
            [DsideWalkCyclesCombined; 2],
        ),
        (
            Capability::OccupancyOnlyLoadStoreSeparate,
            [LoadWalkPending, StoreWalkPending],
        ),
        (
            Capability::CountsOnlyLoadStoreSeparate,
            [LoadWalksCompleted, StoreWalksCompleted],
        ),
        (
            Capability::CountsOnlyLoadPlusAllDside,
            [LoadWalksCompleted, DsideWalksCombined],
        ),
        (Capability::CountsOnlyCombined, [DsideWalksCombined; 2]),
    ];
    let added = ladder.into_iter().find(|(_, needed)| {
        needed.iter().all(|&role| has(role)) && needed.iter().any(|role| given.contains(role))
    });
    match added {
        Some((added, _)) if rank(added) < rank(published) => added,
        _ => published,
    }
}

/// Place on the ladder; less is better.
fn rank(capability: Capability) -> u8 {
    capability as u8
}
