//! The workflows that an engine knows.

use std::collections::HashMap;
use std::sync::Arc;

use piton_core::{Code, Json, Limits, Refusal, WorkflowName};

use crate::Result;
use crate::pass::CheckCreated;
use crate::workflow::{Program, Registration};

/// The workflows of this engine, by name.
pub(crate) struct Registry {
    programs: HashMap<WorkflowName, Arc<dyn Program>>,
    pub(crate) names: Arc<[WorkflowName]>,
    limits: Arc<Limits>,
}

impl Registry {
    pub(super) fn new(registrations: Vec<Registration>, limits: Arc<Limits>) -> Result<Self> {
        let mut programs = HashMap::new();
        for Registration { name, program } in registrations {
            let name = WorkflowName::parse(&name, &limits)?;
            if programs.insert(name.clone(), program).is_some() {
                let message = format!("workflow {name:?} is registered twice; names must differ");
                return Err(Refusal::new(Code::InvalidWorkflowName, message).into());
            }
        }
        let mut names: Vec<_> = programs.keys().cloned().collect();
        names.sort();
        Ok(Self { programs, names: names.into(), limits })
    }

    pub(crate) fn program(&self, name: &WorkflowName) -> Option<Arc<dyn Program>> {
        self.programs.get(name).cloned()
    }

    pub(crate) fn find(&self, name: &str) -> Result<(WorkflowName, Arc<dyn Program>)> {
        let name = WorkflowName::parse(name, &self.limits)?;
        let Some(program) = self.program(&name) else {
            let known: Vec<_> = self.names.iter().map(WorkflowName::as_str).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            let message = format!(
                "no workflow {name:?} is registered with this engine (registered: {known})"
            );
            return Err(Refusal::new(Code::WorkflowNotFound, message).into());
        };
        Ok((name, program))
    }
}

impl CheckCreated for Registry {
    fn check_created(&self, workflow: &str, params: &Json) -> Result<WorkflowName> {
        let (name, program) = self.find(workflow)?;
        program.check_params(params)?;
        Ok(name)
    }
}
