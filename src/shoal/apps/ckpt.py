"""`shoal ckpt`: list, show, compare, check, fork, merge, pin, prune, export and import checkpoints.

In flow command lines; out flow tables for people or, with --json, one JSON value on stdout. Invariant: a checkpoint is
named by the beginning of its id; nothing but fork, merge, pin, prune, import and `verify --repair` changes anything.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from shoal.apps.printable import printable
from shoal.base.units import show_bytes

app = typer.Typer(help="Checkpoints: a graph of saved states to fork, merge and move.", no_args_is_help=True)

VertexName = Annotated[str, typer.Argument(help="A checkpoint's id, or its first letters.")]
Json = Annotated[bool, typer.Option("--json", help="Answer with one JSON value.")]
HomeOption = Annotated[Path | None, typer.Option("--home", help="Where things live (default ~/.shoal).")]
StoreOption = Annotated[str | None, typer.Option("--store", help="sqlite:///PATH or postgresql://...")]
Server = Annotated[str | None, typer.Option(help="The coordinator's API; default: this home's.")]
Token = Annotated[str | None, typer.Option(help="Its admin token; default: $SHOAL_TOKEN.")]
TokenFile = Annotated[Path | None, typer.Option(help="A file with the token; default: this home's.")]
RecipeOption = Annotated[
    str | None, typer.Option("--recipe", help="Another recipe; default: the checkpoint's own.")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override a field; may be repeated.")
]
NameOption = Annotated[str | None, typer.Option("--name", help="What the new run is called.")]
Unattested = Annotated[
    bool, typer.Option("--unattested", help="Also where no two thirds of the members signed.")
]
RunOption = Annotated[str, typer.Option("--run", help="Only of runs whose id begins so.")]


@app.command("list")
def list_vertices(
    run: RunOption = "",
    svg: Annotated[Path | None, typer.Option("--svg", help="Also draw the graph into this file.")] = None,
    home: HomeOption = None,
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """Every checkpoint, parents before children."""
    from shoal.apps.ckpt_reading import lines_of, opened
    from shoal.checkpoint.dag import Dag
    from shoal.checkpoint.dag import as_json as graph_json
    from shoal.checkpoint.picture import as_svg

    with opened(home, store) as here:
        dag = here.library.dag()
        dag = Dag(tuple(vertex for vertex in dag.vertices if vertex.run.startswith(run)))
        stored = {vertex.id: here.library.stored(vertex) for vertex in dag.vertices}
        pinned = here.pinned(dag)
    if svg is not None:
        svg.write_text(as_svg(dag), "utf-8")
    if as_json:
        _print_json(graph_json(dag, stored=stored, pinned=pinned))
        return
    for line in lines_of(dag, stored, pinned):
        print(line)


@app.command()
def show(
    vertex: VertexName, home: HomeOption = None, store: StoreOption = None, as_json: Json = False
) -> None:
    """One checkpoint: parents, contributors, metrics, signatures."""
    from shoal.apps.ckpt_reading import opened, story_of
    from shoal.checkpoint.dag import vertex_json

    with opened(home, store) as here:
        found = here.library.dag().find(vertex)
        stored = here.library.stored(found)
    if as_json:
        _print_json(vertex_json(found) | {"stored": stored})
        return
    for line in story_of(found, stored):
        print(line)


@app.command()
def diff(
    one: VertexName,
    other: VertexName,
    home: HomeOption = None,
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """What two checkpoints differ in: recipes, metrics, tensors."""
    from shoal.apps.ckpt_reading import compare, opened, show_difference

    with opened(home, store) as here:
        dag = here.library.dag()
        found = compare(here, dag, dag.find(one), dag.find(other))
    if as_json:
        _print_json(found)
        return
    for line in show_difference(found):
        print(line)


@app.command()
def fork(
    vertex: VertexName,
    recipe: RecipeOption = None,
    settings: Settings = None,
    name: NameOption = None,
    unattested: Unattested = False,
    home: HomeOption = None,
    store: StoreOption = None,
    server: Server = None,
    token: Token = None,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """Found a run that begins at a checkpoint, with its recipe or another."""
    _found(
        [vertex], recipe, settings, [], name, unattested, (home, store), (server, token, token_file), as_json
    )


@app.command()
def merge(
    vertices: Annotated[list[str], typer.Argument(help="Two checkpoints or more, of the same parameters.")],
    weight: Annotated[
        list[float] | None, typer.Option("--weight", help="One for each, in order; alike if none is given.")
    ] = None,
    recipe: RecipeOption = None,
    settings: Settings = None,
    name: NameOption = None,
    unattested: Unattested = False,
    home: HomeOption = None,
    store: StoreOption = None,
    server: Server = None,
    token: Token = None,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """Found a run that begins at the weighted mean of checkpoints: a vertex with several parents."""
    if len(vertices) < 2:
        raise typer.BadParameter("name two checkpoints or more", param_hint="VERTICES")
    places, access = (home, store), (server, token, token_file)
    _found(vertices, recipe, settings, weight or [], name, unattested, places, access, as_json)


def _found(
    names: list[str],
    recipe: str | None,
    settings: list[str] | None,
    weights: list[float],
    name: str | None,
    unattested: bool,
    places: tuple[Path | None, str | None],
    access: tuple[str | None, str | None, Path | None],
    as_json: bool,
) -> None:
    from shoal.apps.ckpt_founding import found, recipe_for
    from shoal.apps.ckpt_reading import opened
    from shoal.checkpoint.vertices import vertices_of

    with opened(*places) as here:
        dag = here.library.dag()
        vertices = [dag.find(one) for one in names]
        wanted = recipe_for(
            here, vertices, recipe, settings or (), weights=weights, unattested=unattested, name=name
        )
        answer = found(here, wanted, *access)
        begun = vertices_of(here.library.log_of(answer["run"])[:1])[0]
    told = {
        **answer,
        "vertex": begun.id,
        "kind": begun.kind,
        "parents": list(begun.parents),
        "model": begun.model,
    }
    if as_json:
        _print_json(told)
        return
    print(f"run {printable(str(answer['run']))}, begun at checkpoint {begun.id[:12]} ({begun.kind})")
    if answer["ticket"]:
        print(f"shoal join {printable(str(answer['ticket']), 2000)}")
    else:
        print("start its coordinator: shoal serve")


@app.command()
def pin(
    vertex: VertexName,
    off: Annotated[bool, typer.Option("--off", help="Let it go again.")] = False,
    home: HomeOption = None,
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """Keep a checkpoint's state whatever the retention rules say."""
    from shoal.apps.ckpt_reading import opened

    with opened(home, store) as here:
        found = here.library.dag().find(vertex)
        if off:
            here.unpin(found)
        else:
            here.pin(found)
    _say({"vertex": found.id, "pinned": not off}, f"{found.id[:12]} {'let go' if off else 'pinned'}", as_json)


@app.command()
def prune(
    run: RunOption = "",
    last: Annotated[int | None, typer.Option(help="Keep the last so many.", min=2)] = None,
    every: Annotated[int | None, typer.Option(help="Keep every so many-th.", min=0)] = None,
    best: Annotated[int | None, typer.Option(help="Keep the best so many.", min=0)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    home: HomeOption = None,
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """Remove saved states that no rule keeps: the recipe's `storage.retention`, or the rules given here."""
    from shoal.apps.ckpt_moving import prune_states
    from shoal.apps.ckpt_reading import opened

    with opened(home, store) as here:
        told = prune_states(here, run, {"last": last, "every": every, "best": best}, dry_run=dry_run)
    for item in told["removed"] if not as_json else ():
        print(f"{'would go' if dry_run else 'gone'}  {item['vertex'][:12]}  position {item['position']}")
    for item in told["kept"] if not as_json else ():
        print(f"kept  {item['vertex'][:12]}  position {item['position']}: {item['reason']}")
    _say(told, f"{show_bytes(told['freed_bytes'])} {'would be' if dry_run else 'are'} free again", as_json)


@app.command()
def export(
    vertex: VertexName,
    to: Annotated[str, typer.Argument(help="A folder, s3://BUCKET/PATH, ipfs://, or any fsspec address.")],
    form: Annotated[
        str, typer.Option("--format", help="hf, dcp (torch.distributed.checkpoint) or state.")
    ] = "hf",
    torrent: Annotated[
        Path | None, typer.Option(help="Also write a v2 torrent of it into this file; needs a local folder.")
    ] = None,
    web_seed: Annotated[
        list[str] | None, typer.Option(help="An address below which the folder lies, for the torrent.")
    ] = None,
    tracker: Annotated[list[str] | None, typer.Option(help="A tracker of the torrent.")] = None,
    data: Annotated[bool, typer.Option("--data", help="Take the training data along.")] = False,
    unattested: Unattested = False,
    home: HomeOption = None,
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """Write a checkpoint, with the proof of it, as a folder, to a bucket, to IPFS, as a torrent."""
    from shoal.apps.ckpt_moving import export_vertex
    from shoal.apps.ckpt_reading import opened

    with opened(home, store) as here:
        found = here.library.dag().find(vertex)
        told = export_vertex(here, found, to, form, data=data, unattested=unattested)
    if torrent is not None:
        from shoal.apps.ckpt_moving import write_torrent

        told |= write_torrent(Path(to), torrent, web_seed or [], tracker or [])
    text = f"{told['address']}: checkpoint {found.id[:12]} as {form}, model {found.model[:16]}"
    _say(told, text + (f"\n{told['magnet']}" if torrent else ""), as_json)


@app.command("import")
def import_vertex(
    source: Annotated[str, typer.Argument(help="A folder, s3://..., ipfs://CID, magnet:... or a .torrent.")],
    home: HomeOption = None,
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """Take a checkpoint from elsewhere, checked against its own signed log; then fork, merge or export it."""
    from shoal.apps.ckpt_moving import import_from
    from shoal.apps.ckpt_reading import opened

    with opened(home, store, create=True) as here:
        told = import_from(here, source)
    _say(told, f"checkpoint {told['vertex']} of run {told['run'][:12]}, position {told['position']}", as_json)


@app.command()
def verify(
    vertex: Annotated[str, typer.Argument(help="Only this checkpoint; all stored files if left out.")] = "",
    repair: Annotated[
        bool, typer.Option("--repair", help="Replace what is damaged by sound copies from the run's members.")
    ] = False,
    node: Annotated[bool, typer.Option("--node", help="A node's home instead of the coordinator's.")] = False,
    source: Annotated[
        list[Path] | None, typer.Option("--from", help="Another home that may hold copies; may be repeated.")
    ] = None,
    home: HomeOption = None,
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """Check every stored file (log, blobs, private state, keys) and name each that is damaged; or one checkpoint."""
    from shoal.apps.ckpt_verifying import verify_home, verify_vertex

    if vertex:
        told = verify_vertex(home, store, vertex)
    else:
        told = verify_home(home, store, node=node, repair=repair, sources=source or [])
    for item in told.get("damaged", ()) if not as_json else ():
        fate = f"; {item['repair']}" if item["repair"] else ""
        print(f"{item['file']}: {printable(item['what'], 500)}{fate}")
    _say(told, told["summary"], as_json)
    if not told["ok"]:
        raise typer.Exit(1)


def _say(fields: dict[str, Any], text: str, as_json: bool) -> None:
    print(json.dumps(fields) if as_json else printable(text, 4000) if "\n" not in text else text)


def _print_json(value: Any) -> None:
    print(json.dumps(value))
