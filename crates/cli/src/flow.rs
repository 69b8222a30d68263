//! `netnice flow`: lists the flows of the direct path, opens one for standard input and output
//! ([`open_flow`]), and closes one. Fails if the daemon cannot be reached, the connection to it
//! fails, or standard output cannot be written.

pub(crate) mod open_flow;

use netnice_api::direct::{CloseFlow, DirectRequest};
use netnice_api::{Exit, Request, Response, RuntimeDir, Show, ShowDoc};

use crate::daemon;
use crate::error::CommandError;
use crate::output::{print_response, print_text};
use crate::render::{self, Style};

/// A verb of `netnice flow`.
#[derive(Debug)]
pub(crate) enum FlowCommand {
    /// List the open flows.
    List,
    /// Open a flow for standard input and output.
    Open(Box<open_flow::Open>),
    /// Close the flow with this number.
    Close(u32),
}

/// Executes a verb of `netnice flow`.
///
/// # Errors
/// For the reasons in the module's documentation, and as [`open_flow::execute`].
pub(crate) fn execute(
    dir: &RuntimeDir,
    json: bool,
    command: FlowCommand,
) -> Result<Exit, CommandError> {
    match command {
        FlowCommand::List => list(dir, json),
        FlowCommand::Open(open) => open_flow::execute(dir, &open),
        FlowCommand::Close(flow) => {
            let request = Request::Direct(DirectRequest::End(CloseFlow { flow }));
            let response = daemon::connect(dir)?.call(&request, None)?;
            print_response(&response, json)?;
            Ok(Exit::from(&response))
        }
    }
}

/// Prints the flows without links and targets.
fn list(dir: &RuntimeDir, json: bool) -> Result<Exit, CommandError> {
    let response = daemon::connect(dir)?.call(&Request::Show(Show { target: None }), None)?;
    let response = match response {
        Response::Shown(doc) => Response::Shown(ShowDoc {
            links: Vec::new(),
            targets: Vec::new(),
            unconfirmed: Vec::new(),
            ..doc
        }),
        other => other,
    };
    match &response {
        Response::Shown(doc) if !json => {
            print_text(&render::flow_list(doc, &Style::of_stdout()))?;
        }
        _ => print_response(&response, json)?,
    }
    Ok(Exit::from(&response))
}
