// What a page may try at a server of another origin. Each attempt ends, and says how.
async ({url, body}) => {
  const json = {type: "application/json"}, text = {type: "text/plain"};
  const attempts = {
    blob: () => fetch(url, {method: "POST", body: new Blob([body])}),
    blobAsJson: () => fetch(url, {method: "POST", body: new Blob([body], json)}),
    text: () => fetch(url, {method: "POST", body, headers: {"content-type": "text/plain"}}),
    json: () => fetch(url, {method: "POST", body, headers: {"content-type": "application/json"}}),
    bytes: () => fetch(url, {method: "POST", body: new TextEncoder().encode(body)}),
    keepalive: () => fetch(url, {method: "POST", body: new Blob([body]), keepalive: true}),
    noCorsBlob: () => fetch(url, {method: "POST", mode: "no-cors", body: new Blob([body])}),
    noCorsText: () => fetch(url, {method: "POST", mode: "no-cors", body}),
    noCorsNamedJson: () => fetch(url, {
      method: "POST", mode: "no-cors", body: new Blob([body]),
      headers: {"content-type": "application/json"},  // the browser drops this name
    }),
    noReferrer: () => fetch(url, {
      method: "POST", mode: "no-cors", body: new Blob([body]), referrerPolicy: "no-referrer",
    }),
    urlencoded: () => fetch(url, {method: "POST", mode: "no-cors", body: new URLSearchParams({body})}),
    remove: () => fetch(url, {method: "DELETE"}),
    request: () => new Promise((done, failed) => {
      const request = new XMLHttpRequest();
      request.open("POST", url);
      request.onload = () => done(request);
      request.onerror = failed;
      request.send(new Blob([body]));
    }),
    beacon: async () => navigator.sendBeacon(url, new Blob([body])),
    beaconAsText: async () => navigator.sendBeacon(url, new Blob([body], text)),
    beaconAsJson: async () => navigator.sendBeacon(url, new Blob([body], json)),
    image: () => new Promise((done, failed) => {
      const image = new Image();
      image.onload = done;
      image.onerror = failed;
      image.src = `${url}?body=${encodeURIComponent(body)}`;
    }),
    script: () => new Promise((done, failed) => {
      const script = document.createElement("script");
      script.onload = done;
      script.onerror = failed;
      script.src = url;
      document.head.append(script);
    }),
    socket: () => new Promise((done, failed) => {
      const socket = new WebSocket(url.replace("http", "ws"));
      socket.onopen = () => { socket.send(body); done(socket); };
      socket.onerror = failed;
    }),
    sandbox: () => new Promise((done) => {  // its origin is "null"
      const frame = document.createElement("iframe");
      frame.sandbox = "allow-scripts";
      const send = `fetch(${JSON.stringify(url)}, {method: "POST", mode: "no-cors",
        body: new Blob([${JSON.stringify(body)}])})`;
      frame.srcdoc = `<script>${send}.finally(() => parent.postMessage("sent", "*"))</` + "script>";
      addEventListener("message", () => done(), {once: true});
      document.body.append(frame);
    }),
  };
  for (const encoding of ["text/plain", "multipart/form-data", "application/x-www-form-urlencoded"])
    attempts[`form ${encoding}`] = () => new Promise((done) => {
      const frame = document.createElement("iframe"), form = document.createElement("form");
      frame.name = `answer to ${encoding}`;
      document.body.append(frame, form);
      Object.assign(form, {action: url, method: "POST", enctype: encoding, target: frame.name});
      const field = document.createElement("input");  // NAME=VALUE is JSON again
      [field.name, field.value] = [`${body.slice(0, -1)}, "x": "`, `"}`];
      form.append(field);
      frame.onload = () => done();
      form.submit();
    });
  const ends = {};
  for (const [name, attempt] of Object.entries(attempts))
    ends[name] = await attempt().then(
      (end) => end?.type === "opaque" ? "sent" : end?.status ?? String(end ?? "sent"),
      () => "failed",
    );
  return ends;
}
