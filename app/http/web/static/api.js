/** The service, as the page asks it. */

/** An answer that is no success: `status`, a sentence, and the `errors` with their pointers. */
export class Refusal extends Error {
  constructor(status, problem) {
    super(problem.detail ?? problem.error ?? problem.title ?? `The service answered ${status}.`);
    this.status = status;
    this.errors = problem.errors ?? [];
  }
}

export class Api {
  #key = "";
  #asking = null;
  #askForKey;

  /** `askForKey`, given what is wrong with the last one, resolves to a key, or to null if there shall be none. */
  constructor(askForKey) {
    this.#askForKey = askForKey;
  }

  /** Where the service is, without a slash at the end. */
  get url() {
    return new URL(".", document.baseURI).href.replace(/\/$/, "");
  }

  get isKeyed() {
    return this.#key !== "";
  }

  set key(key) {
    this.#key = key;
  }

  async #send(path, { method = "GET", body, signal } = {}) {
    for (;;) {
      const key = this.#key;
      const headers = {};
      if (body !== undefined) headers["content-type"] = "application/json";
      if (key) headers.authorization = `Bearer ${key}`;
      const response = await fetch(path, { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body) });
      if (response.status !== 401) return response;
      const problem = await response.json().catch(() => ({}));
      // One question for all requests that wait for the answer.
      if (key === this.#key) {
        this.#asking ??= this.#askForKey(key ? problem.detail : "").finally(() => (this.#asking = null));
        const given = await this.#asking;
        if (!given) throw new Refusal(401, problem);
        this.#key = given;
      }
    }
  }

  /** The JSON document that is answered. Throws a Refusal; TypeError if the service is not there. */
  async json(path, request) {
    const response = await this.#send(path, request);
    if (response.status === 204) return null;
    const document = await response.json().catch(() => ({}));
    if (!response.ok) throw new Refusal(response.status, document);
    return document;
  }

  async text(path) {
    const response = await this.#send(path);
    if (!response.ok) throw new Refusal(response.status, await response.json().catch(() => ({})));
    return response.text();
  }

  dispatch(body, signal) {
    return this.json("v1/dispatch", { method: "POST", body, signal });
  }
}

/** What an error says to a person. */
export const sentence = (error) =>
  error instanceof TypeError && /fetch|network|load failed/i.test(error.message) ? "The service cannot be reached." : error.message;
