//! What the hardware can tell about page walks on a given CPU, and how to ask it: identity -> core types -> events ->
//! plan. Pure knowledge, no event is opened here; `smtt-ctl pmu` prints it, the measuring side follows it.

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

/// Events from the configuration, by role, in perf's notation; they take the place of the table's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Overrides(pub BTreeMap<Role, String>);

/// An event of the configuration that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("event of role {role}: {error}")]
pub struct OverrideError {
    /// Whose event.
    pub role: Role,
    /// What is wrong with it.
    pub error: EventError,
}

/// Who says what an event counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The vendor's published events.
    Table,
    /// The kernel's generic events: what they count on this CPU is not known.
    Generic,
    /// The user.
    Configuration,
}

/// One of several events whose sum a role is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Component {
    /// The vendor's name of it.
    pub name: String,
    /// How it is opened.
    #[serde(flatten)]
    pub encoding: Encoding,
}

/// The event of one role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RoleEvent {
    /// The vendor's name, or the text of the configuration.
    pub name: String,
    /// How it is opened; absent if it is a sum.
    #[serde(flatten)]
    pub encoding: Option<Encoding>,
    /// The events it is the sum of.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub components: Vec<Component>,
    /// General counters that can count it; empty where no constraint is known.
    pub counters: Vec<u8>,
    /// What it adds up.
    pub quantity: Quantity,
    /// Its samples carry the data address.
    pub gives_data_address: bool,
    /// What must be picked out of its samples.
    pub filter: Option<Filter>,
    /// It counts all that its role says.
    pub complete: bool,
    /// The vendor's errata that touch it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub errata: String,
    /// Who says so.
    pub source: Source,
}

impl RoleEvent {
    /// The PMU that counts it, by its name in sysfs.
    pub fn pmu(&self) -> &str {
        self.openings().next().map_or("", |opening| &opening.pmu)
    }

    /// Every event that has to be opened for it.
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
    /// The PMU of this core type, by its name in sysfs.
    pub pmu: String,
    /// Whether this machine has that PMU; absent if another CPU is described.
    pub pmu_present: Option<bool>,
    /// Name of the core type.
    pub uarch: String,
    /// Which core of a hybrid CPU.
    pub core_type: Option<CoreType>,
    /// What its events can give.
    pub ratio_capability: Capability,
    /// Page walks that it can have in flight at once, where stated.
    pub page_walkers: Option<u8>,
    /// The events.
    #[serde(flatten)]
    pub roles: BTreeMap<Role, RoleEvent>,
    /// How they are used.
    pub plan: Plan,
}

/// What is measured on a CPU: one result per core type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Measured {
    /// The CPU's identity.
    pub cpu: String,
    /// Its core types; one unless it is a hybrid CPU.
    pub cores: Vec<MeasuredCore>,
}

/// Says what would be measured on a CPU. Fails only for an event of the configuration that cannot be used.
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
            // The table's events cannot be opened here. They must not take counters from those that are configured.
            roles.retain(|role, _| given.contains(role));
        }
        let published = row.map_or(Capability::Unknown, |row| row.family.capability);
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
        cores.push(core);
    }
    Ok(Measured {
        cpu: identity.cpu.to_string(),
        cores,
    })
}
