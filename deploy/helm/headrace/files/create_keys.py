"""Make each API key of the chart once, and keep it in a Secret.

create_keys.py ACCOUNT RELEASE NAME:SCOPE,SCOPE …: ACCOUNT is the folder of the service account. The
Secret is RELEASE-key-NAME, with `key`. A Secret whose key Redis does not know, as after the loss of
its data, gets a new one.
"""

import base64
import json
import os
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path


def main(account: Path, release: str, keys: list[str]) -> None:
    """Make the keys whose Secrets have none."""
    namespace = (account / "namespace").read_text().strip()
    host = os.environ["KUBERNETES_SERVICE_HOST"]
    host = f"[{host}]" if ":" in host else host
    server = f"https://{host}:{os.environ['KUBERNETES_SERVICE_PORT']}"
    trusted = ssl.create_default_context(cafile=account / "ca.crt")

    def call(method: str, name: str = "", body: object = None) -> dict | None:
        """Return the answer about a Secret; None if a GET finds none."""
        kind = "merge-patch+json" if method == "PATCH" else "json"
        request = urllib.request.Request(
            f"{server}/api/v1/namespaces/{namespace}/secrets{name and '/' + name}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {(account / 'token').read_text().strip()}",
                "Content-Type": f"application/{kind}",
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=30, context=trusted) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if (method, error.code) == ("GET", 404):
                return None
            raise SystemExit(
                f"{method} of Secret {name}: {error.code} {error.read().decode()}"
            ) from error

    listed = map(json.loads, headrace("keys", "list", "--json").splitlines())
    known = {key["id"]: key["scopes"] for key in listed}
    for item in keys:
        name, _, scopes = item.partition(":")
        secret = f"{release}-key-{name}"
        found = call("GET", secret)
        text = base64.b64decode((found or {}).get("data", {}).get("key", "")).decode()
        # hr_ID_SECRET
        if text and (has := known.get(text.split("_")[1])) is not None:
            # Its clients may run, and jobs belong to it.
            hint = "; to change them, delete the Secret, upgrade, and revoke the old key"
            differs = set(has) != set(scopes.split(","))
            print(f"{secret}: there already, with {','.join(has)}{hint if differs else ''}")
            continue
        options = [word for scope in scopes.split(",") for word in ("--scope", scope)]
        created = json.loads(headrace("keys", "create", name, *options, "--json"))
        labels = {"app.kubernetes.io/name": "headrace", "app.kubernetes.io/instance": release}
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": secret, "labels": labels},
            "data": {"key": base64.b64encode(created["key"].encode()).decode()},
        }
        try:
            call("PATCH", secret, body) if found else call("POST", body=body)
        except BaseException:
            headrace("keys", "revoke", created["id"])
            raise
        print(f"{secret}: created, with the scopes {scopes}")


def headrace(*words: str) -> str:
    """Return the output of a command of Headrace."""
    return subprocess.run(
        ["headrace", *words], check=True, stdout=subprocess.PIPE, text=True
    ).stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
