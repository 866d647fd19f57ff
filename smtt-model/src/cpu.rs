//! Which page-walk figures a given CPU can measure, and how: identity -> core types -> events -> plan. Pure: no event
//! is opened here. `smtt-ctl pmu` prints the plan, the daemon follows it.

mod choose;
mod encoding;
mod events;
mod files;
mod identity;
mod pattern;
mod plan;
mod role;
mod syntax;
mod table;
mod text;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use encoding::{
    Encoding, PERF_TYPE_HARDWARE, PERF_TYPE_HW_CACHE, PERF_TYPE_RAW, PERF_TYPE_SOFTWARE, Pmu, Pmus,
};
pub use files::Files;
pub use identity::{Cpu, CpuId, NoCpu};
pub use plan::{
    Caveat, CaveatCode, Figure, FigureName, Formula, Group, Pass, Plan, Purpose, Quantity, Ratio,
};
pub use role::{Capability, CoreType, Role};
pub use syntax::EventError;
pub use table::{CORES, Filter};

/// Events from the configuration, by role, in perf's notation; they replace the table's events.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Overrides(pub BTreeMap<Role, String>);

/// An unusable event of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("event of role {role}: {error}")]
pub struct OverrideError {
    /// Role of the event.
    pub role: Role,
    /// What is wrong with the event.
    pub error: EventError,
}

/// Source of an event's definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The vendor's published events.
    Table,
    /// The kernel's generic events: what they count on this CPU is unknown.
    Generic,
    /// The configuration.
    Configuration,
}

/// One component of a role that is a sum of events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Component {
    /// The vendor's name of the event.
    pub name: String,
    /// Attributes to open the event with.
    #[serde(flatten)]
    pub encoding: Encoding,
}

/// The event of one role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RoleEvent {
    /// The vendor's name, or the text of the configuration.
    pub name: String,
    /// Attributes to open the event with; absent for a sum.
    #[serde(flatten)]
    pub encoding: Option<Encoding>,
    /// Components of the sum.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub components: Vec<Component>,
    /// General counters that can count the event; empty without a known constraint.
    pub counters: Vec<u8>,
    /// Quantity that the event adds up.
    pub quantity: Quantity,
    /// Whether samples of the event contain the data address.
    pub gives_data_address: bool,
    /// Filter on the samples of the event.
    pub filter: Option<Filter>,
    /// Whether the event covers its role completely.
    pub complete: bool,
    /// The vendor's errata for the event.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub errata: String,
    /// Source of the event's definition.
    pub source: Source,
}

impl RoleEvent {
    /// Name in sysfs of the PMU that counts the event.
    pub fn pmu(&self) -> &str {
        self.openings().next().map_or("", |opening| &opening.pmu)
    }

    /// Every event to open for the role.
    pub fn openings(&self) -> impl Iterator<Item = &Encoding> {
        self.encoding
            .iter()
            .chain(self.components.iter().map(|component| &component.encoding))
    }

    fn simple(role: Role, name: &str, encoding: Encoding, source: Source) -> Self {
        Self {
            name: name.to_owned(),
            encoding: Some(encoding),
            components: Vec::new(),
            counters: Vec::new(),
            quantity: events::quantity(role),
            gives_data_address: events::quantity(role) == Quantity::Samples,
            filter: None,
            complete: true,
            errata: String::new(),
            source,
        }
    }
}

/// What is measured on one core type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MeasuredCore {
    /// Name in sysfs of this core type's PMU.
    pub pmu: String,
    /// Whether this machine has that PMU; absent if another CPU is described.
    pub pmu_present: Option<bool>,
    /// Name of the core type.
    pub uarch: String,
    /// Which core of a hybrid CPU.
    pub core_type: Option<CoreType>,
    /// Capability of the core type's events.
    pub ratio_capability: Capability,
    /// Page walks that the core can have in flight at once, where stated.
    pub page_walkers: Option<u8>,
    /// The events.
    #[serde(flatten)]
    pub roles: BTreeMap<Role, RoleEvent>,
    /// Plan of measurement.
    pub plan: Plan,
}

/// What is measured on a CPU: one result per core type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Measured {
    /// The CPU's identity.
    pub cpu: String,
    /// Core types of the CPU; one unless it is a hybrid CPU.
    pub cores: Vec<MeasuredCore>,
}

/// Describes what can be measured on a CPU. Fails only for an unusable event of the configuration.
pub fn describe(identity: &CpuId, overrides: &Overrides) -> Result<Measured, OverrideError> {
    let chosen = choose::choose(identity);
    let rows = chosen.cores.iter();
    let rows: Vec<(&Pmu, Option<&table::Core>)> = rows
        .filter_map(|(name, row)| Some((identity.pmus.get(name)?, *row)))
        .collect();
    let pmus: Vec<&Pmu> = rows.iter().map(|&(pmu, _)| pmu).collect();
    let configured = events::configured(identity, overrides, &pmus)?;
    let mut cores = Vec::new();
    for (pmu, row) in rows {
        let mut roles = match row {
            Some(row) => events::of_row(row, pmu, identity)?,
            None => events::generic(pmu, pmus.len() > 1),
        };
        let mut given = Vec::new();
        for (role, event) in &configured {
            let mine = event.openings().any(|opening| {
                opening.pmu == pmu.name || !events::is_core_pmu(&opening.pmu, &pmus)
            });
            if mine {
                given.push(*role);
                roles.insert(*role, event.clone());
            }
        }
        if pmu.present == Some(false) && !given.is_empty() {
            // The table's events cannot be opened on this machine. They must not take counters from the configured
            // ones.
            roles.retain(|role, _| given.contains(role));
        }
        let denied = row.is_some_and(|row| row.denied_by(pmu));
        if denied {
            // They would count 0, which is no measurement. Cycles are what configured events are compared with.
            let has_cycles = !given.is_empty() && pmu.events.contains(table::ARM_CYCLES);
            roles.retain(|role, event| {
                given.contains(role)
                    || event.pmu() != pmu.name
                    || *role == Role::Cycles && has_cycles
            });
        }
        let published = row.filter(|_| !denied);
        let published = published.map_or(Capability::Unknown, |row| row.family.capability);
        let ratio_capability = events::capability(published, &roles, &given);
        let plan = Plan::of(&plan::Given {
            pmu: &pmu.name,
            pmu_present: pmu.present,
            roles: &roles,
            capability: ratio_capability,
            walkers: row.and_then(|row| row.walkers),
            quirk: row.and_then(|row| row.quirk),
            hyper_threading: identity.hyper_threading,
            virtualised: identity.virtualised,
            absent: &|name| {
                identity
                    .pmus
                    .get(name)
                    .is_some_and(|pmu| pmu.present == Some(false))
                    && name != pmu.name
            },
        });
        let mut core = MeasuredCore {
            pmu: pmu.name.clone(),
            pmu_present: pmu.present,
            uarch: row.map_or("unknown", |row| row.uarch).to_owned(),
            core_type: row.and_then(|row| row.core_type),
            ratio_capability,
            page_walkers: row.and_then(|row| row.walkers),
            roles,
            plan,
        };
        if let (None, Some(why)) = (row, &chosen.why_unknown) {
            core.plan.caveats.push(Caveat {
                code: CaveatCode::UnknownCpu,
                text: why.clone(),
            });
        }
        if denied {
            core.plan.caveats.push(Caveat {
                code: CaveatCode::EventsAbsent,
                text: format!(
                    "the PMU `{}` of this machine does not have `{}`, which every {} has: it is emulated, or a \
                     hypervisor hides its events, and of page walks only what [page_walks.events] gives can be counted here",
                    core.pmu, table::ARM_WALKS, core.uarch
                ),
            });
        }
        cores.push(core);
    }
    Ok(Measured {
        cpu: identity.cpu.to_string(),
        cores,
    })
}
