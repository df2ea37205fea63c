---@meta ztrain.core
-- What the C side (bindings/) gives to the Lua library. Recipes use `require "ztrain"`, which re-exports the public part
-- (everything here but what is marked internal). Dimensions and positions count from 1, negative dimensions from the end;
-- integers inside tensors (ids, labels, indices) count from 0. Everything that fails raises at the script's line.

---@alias dtype "float32"|"float64"|"bfloat16"|"float16"|"int64"|"int32"|"uint8"
---@alias act "relu"|"gelu"|"gelu_tanh"|"silu"|"tanh"

---@class ztrain.core
local core = {}

---@class Tensor
---@field grad Tensor? accumulated gradient of a leaf; may be set (nil drops it)
---@operator add(Tensor|number): Tensor
---@operator sub(Tensor|number): Tensor
---@operator mul(Tensor|number): Tensor
---@operator div(Tensor|number): Tensor
---@operator pow(Tensor|number): Tensor
---@operator unm: Tensor
local Tensor = {}

------------------------------------------------------------------------------- making
---Nested tables of numbers (or one number). Default dtype float32; `{dtype = "int64"}` for ids.
---@param values table|number
---@param opts? {dtype: dtype?, device: string?}
---@return Tensor
function core.tensor(values, opts) end
---zeros, ones, arange, randn take sizes as arguments or one table of sizes, then an options table.
---@return Tensor
function core.zeros(...) end
function core.ones(...) end
---@param shape integer[] @param value number @param opts? table
function core.full(shape, value, opts) end
---arange(n) or arange(start, stop[, step][, opts]): stop excluded; int64 unless opts.dtype says otherwise
function core.arange(...) end
---zeros that want a gradient. Its bytes come into being when they are read: filled with a number or a draw, or loaded from
---a file before that, it stays a rule, so that a rank makes its own share of it only
---@return Tensor
function core.parameter(...) end
---standard normal, from the context's random state
function core.randn(...) end
---From raw bytes (internal: loaders). @param bytes string
function core.from_bytes(bytes, dtype, shape) end

------------------------------------------------------------------------------- asking
---@param d? integer @return integer ... size(d) is one number; size() all of them
function Tensor:size(d) end
---@return integer
function Tensor:dim() end
---@return dtype
function Tensor:dtype() end
---@return string
function Tensor:device() end
---number of elements @return integer
function Tensor:numel() end
function Tensor:is_contiguous() end
---nested tables (integers for integer dtypes) @return table|number
function Tensor:totable() end
---the one element @return number
function Tensor:item() end
---contiguous raw bytes (internal: files) @return string
function Tensor:bytes() end
---counts the writes in place to its bytes (internal) @return integer
function Tensor:version() end
---same dtype, shape and bits @return boolean
function Tensor:equal(other) end
---checksum of the bytes, as 16 hex digits (tests, --hash) @return string
function Tensor:hash() end

------------------------------------------------------------------------------- gradients
---@param on? boolean default true @return Tensor self
function Tensor:requires_grad_(on) end
---without arguments: whether a gradient flows to it @return boolean
function Tensor:requires_grad() end
---whether it was made, not computed from what a gradient flows to @return boolean
function Tensor:is_leaf() end
---@param grad? Tensor @param opts? {seed: number}
function Tensor:backward(grad, opts) end
---same bytes, no history
function Tensor:detach() end
---keeps it alive beyond the scope that made it @return Tensor self
function Tensor:keep() end
---runs fn with gradients off and returns what it returns (restored on error too)
function core.no_grad(fn, ...) end
---whether gradients are recorded @return boolean
function core.grad_enabled() end
---fn(...) computed again in backward instead of keeping its activations; tensors in, tensors out
function core.checkpoint(fn, ...) end
---Runs fn(...) in a scope (internal: module calls): tensors made inside are freed when it returns, but for those reachable
---from what it returns, kept, or assigned to a module's field. `name` stands in errors: the module's path.
function core.scope(name, fn, ...) end

------------------------------------------------------------------------------- operations; each also a method: t:exp()
---elementwise, broadcasting; the second operand of add sub mul div pow may be a number
function core.add(a, b) end  function core.sub(a, b) end  function core.mul(a, b) end
function core.div(a, b) end  function core.pow(a, b) end  function core.neg(x) end
function core.exp(x) end     function core.log(x) end     function core.sqrt(x) end   function core.rsqrt(x) end
function core.tanh(x) end    function core.sigmoid(x) end function core.relu(x) end   function core.gelu(x) end
function core.gelu_tanh(x) end  function core.silu(x) end function core.clamp(x, low, high) end
---comparisons give uint8: eq ne lt le gt ge (b: tensor or number)
function core.eq(a, b) end function core.ne(a, b) end function core.lt(a, b) end
function core.le(a, b) end function core.gt(a, b) end function core.ge(a, b) end
function core.where(cond, a, b) end
function core.masked_fill(x, mask, value) end
---reductions: over dimension d, or over all without it; keepdim
function core.sum(x, d, keepdim) end  function core.mean(x, d, keepdim) end
function core.max(x, d, keepdim) end  function core.min(x, d, keepdim) end   -- with d: values, index
function core.var(x, d, keepdim, correction) end  function core.norm(x, d, keepdim) end
function core.argmax(x, d, keepdim) end  function core.logsumexp(x, d, keepdim) end
---@return Tensor values, Tensor index
function core.topk(x, k, d, largest) end
function core.matmul(a, b) end
---y = act(x w^T + b); w (out, in), or (in, out) with in_out @param opts? {act: act?, in_out: boolean?}
function core.linear(x, w, b, opts) end
function core.layer_norm(x, w, b, eps) end
---@return Tensor y, Tensor sum
function core.residual_layer_norm(x, residual, w, b, eps) end
function core.softmax(x, d, mask) end  function core.log_softmax(x, d, mask) end
function core.dropout(x, p) end
---@param opts? {mask: Tensor?, bias: Tensor?, scale: number?, causal: boolean?, dropout: number?} mask is uint8 (B, Tk)
function core.attention(q, k, v, opts) end
---qkv (B, T, 3 H D) -> (B, T, H D)
function core.attention_qkv(qkv, n_head, opts) end
---@param opts? {ignore_index: integer?, label_smoothing: number?} ignore_index -100
---@return Tensor loss, Tensor count
function core.cross_entropy(logits, labels, opts) end
---cross entropy of x w^T without holding all logits @return Tensor loss, Tensor count
function core.linear_cross_entropy(x, w, labels, opts) end
function core.mse(x, target) end
---@param opts? {stride: integer?, padding: integer?, dilation: integer?}
function core.conv1d(x, w, b, opts) end
function core.embedding(w, ids) end
function core.gather(x, d, index) end  function core.index_select(x, d, index) end
function core.scatter_add(x, d, index, src) end
---@param list Tensor[]
function core.cat(list, d) end  function core.stack(list, d) end
---equal parts of n (the last may be smaller), or a table of lengths @return Tensor ...
function core.split(x, n, d) end
---sizes as arguments or a table; one may be -1
function core.reshape(x, ...) end  function core.view(x, ...) end  function core.expand(x, ...) end
function core.transpose(x, d1, d2) end  function core.permute(x, ...) end
function core.narrow(x, d, start, n) end
function core.contiguous(x) end  function core.copy(x) end
---@param what dtype|string a dtype or a device
function Tensor:to(what) end
---element or subtensor i of dimension 1 (a view); -1 is the last
---@class Tensor @field [integer] Tensor

------------------------------------------------------------------------------- in place, no history; return self
function Tensor:fill_(v) end   function Tensor:zero_() end   function Tensor:copy_(src) end
function Tensor:add_(x, alpha) end  -- x: tensor or number
function Tensor:mul_(factor) end
function Tensor:normal_(mean, std) end  function Tensor:uniform_(low, high) end

------------------------------------------------------------------------------- without gradient
---one id a row of logits (rows, V) @param opts? {temperature: number?, top_k: integer?, top_p: number?}
function core.sample(logits, opts) end
---L2 norm of all tensors of a list together; also the place of the first non-finite element
---@return number norm, integer? which, integer? element  -- which: position in the list, element: from 0
function core.global_norm(list) end

------------------------------------------------------------------------------- context (internal unless re-exported)
---seeds all random numbers
function core.seed(n) end
---@param t {step: integer?, call: integer?, first_sample: integer?} sets given fields @return table all fields (with seed)
function core.random_state(t) end
---@return {used: integer, peak: integer, held: integer, held_peak: integer, kinds: table<string, integer>, peak_kinds: table<string, integer>}
function core.memory() end
function core.reset_peak_memory() end
---peak resident bytes of the process (host) @return integer
function core.peak_rss() end
---calls fn with new tensors counted as kind ("parameters", "gradients", "optimizer", "activations", "communication", "other")
function core.with_kind(kind, fn, ...) end
---seconds, monotonic
function core.time() end
---What was given on the command line of the program, or by an embedder; what was not is absent (internal).
---@return {num_processes: integer?, mixed_precision: string?, zero_stage: integer?, gradient_accumulation_steps: integer?, gradient_clipping: number?, accumulate: string?, page_size: integer?, resident_memory: integer?, overlap: boolean?, hash: boolean?} sizes in bytes; resident_memory 0: no limit
function core.settings() end
---The program (or zt_host) calls fn when the script has ended well; several in the order in which they came (internal).
---@param fn fun()
function core.at_end(fn) end
---whether a stop was asked for by SIGINT or SIGTERM: the signal's number or nil. 'defer' true: from now on a signal only
---sets this (a training loop looks); false: it raises at once @return integer?
function core.stop_signal(defer) end
---takes over a signal that another rank got; all ranks end for it @param signal integer
function core.note_stop(signal) end
---whether a file is a terminal: "stdout" or "stderr"; and its width in columns
function core.is_terminal(name) end
function core.mkdirs(path) end
---atomic whole-file write
function core.write_file(path, text) end
---adds the whole text to the end of a file, or nothing of it
function core.append_file(path, text) end
---@return string? text, string? message
function core.read_file(path) end
function core.file_exists(path) end
---number of nodes on the tape (tests)
function core.tape_length() end
---Edits (insert, delete, replace, swap of neighbours) that make b of a (internal: suggestions)
---@param a string @param b string @return integer
function core.edit_distance(a, b) end
---fails host allocation number n from now on (tests); 0: off
function core.fail_allocation(n, forever) end
---@return {n_allocations: integer, n_live_blocks: integer}
function core.host_memory() end
---assigning a tensor to a module's field keeps it alive (internal)
function core.keep(t) end

------------------------------------------------------------------------------- optimizers (internal: ztrain.optim)
---@class Optim
local Optim = {}
---@param kind "adamw"|"adam"|"sgd"|"lion"
---@return Optim
function core.optim(kind) end
---@param group integer from 1 @return integer index from 1
function Optim:add(param, group) end
---One table a group; all parameters that have a gradient are stepped, or none.
---@param groups {lr: number, beta1: number?, beta2: number?, eps: number?, weight_decay: number?, momentum: number?, dampening: number?, nesterov: boolean?, grad_scale: number?}[]
function Optim:step(groups) end
function Optim:zero_grad() end
---@return integer steps, Tensor? m, Tensor? v
function Optim:state(index) end
function Optim:set_state(index, steps, m, v) end

---Trains parameters on any number of ranks (internal: zt.accelerator): they live in pages, which ZeRO's stages shard. See
---core/train/engine.h. All ranks call its methods; those marked so are collectives.
---@class Engine
local Engine = {}
---@param opts? {stage: integer?, accumulate: "sharded"|"local"|nil, micro_steps: integer?, page_size: integer?, resident_memory: integer?, overlap: boolean?} sizes in bytes; resident_memory 0: no limit
---@return Engine
function core.engine(opts) end
---before build, in order @param dtype dtype what it computes in @param optimizer integer from 1; 0: none @param group? integer from 1
function Engine:add(name, tensor, dtype, optimizer, group) end
function Engine:build() end
---@param count integer tokens that this rank's loss is a mean over @param scale? number of the loss
function Engine:micro_step(count, scale) end
function Engine:micro_end() end
---whether this micro-step is a step's last: from its backward on p.grad can be read
function Engine:closing(on) end
---raises a flag (0 to 7) for all ranks to see at finish
function Engine:flag(number, on) end
---completes and agrees on the step's gradients: a collective
---@return {count: integer, norm: number, flags: integer, signal: integer?, bad: string?, bad_element: integer?, bad_micro: integer?, bad_rank: integer?}
function Engine:finish() end
---steps an optimizer's parameters; groups as Optim:step's: a collective @param factor? number of the gradients
function Engine:step(optimizer, kind, groups, factor) end
function Engine:zero() end
---one checksum of all masters, the same for every layout: a collective @return string
function Engine:hash() end
---@return {pages: integer, parameters: integer, elements: integer, padded: integer, gathers: integer, reductions: integer}
function Engine:stats() end
---a collective @param json string @param extras? {[1]: string, [2]: Tensor}[] tensors that all ranks have
function Engine:save(path, json, extras) end
---a collective @return string json
function Engine:load(path, extras) end
---@return {name: string, steps: integer, begun: boolean}[]
function Engine:steps() end
function Engine:set_steps(name, steps, begun) end
---gives its memory back; parameters that are sharded raise from then on
function Engine:close() end
---whether the tensor is an engine's parameter @return boolean
function core.is_prepared(t) end
---brings a tensor's bytes, as reading it would (internal: ranks that only take part)
function core.touch(t) end

---the newest complete checkpoint of a folder, of those named step_N and epoch_N @return string path
function core.checkpoint_latest(folder) end
---removes the oldest complete checkpoints but for `keep`, and what died unfinished
function core.checkpoint_prune(folder, keep) end
---@return Checkpoint
function core.checkpoint_open(path) end
---A checkpoint on disk. What is read is verified.
---@class Checkpoint
local Checkpoint = {}
---@return string
function Checkpoint:json() end
---@return string[]
function Checkpoint:names() end
---@return dtype dtype, integer[] shape
function Checkpoint:info(name) end
---@return Tensor
function Checkpoint:read(name) end
---reads all of it, and raises where something is damaged
function Checkpoint:verify() end
---writes a safetensors file without holding the tensors @param list {name: string, as: string, dtype: dtype}[]
function Checkpoint:export(path, list) end
function Checkpoint:close() end

---The loss scale of float16 (internal): DeepSpeed's dynamic one, or a fixed one.
---@class Scaler
local Scaler = {}
---@param opts? {loss_scale: number?, initial_scale_power: integer?, loss_scale_window: integer?, hysteresis: integer?, consecutive_hysteresis: boolean?, min_loss_scale: number?}
---@return Scaler
function core.scaler(opts) end
---@return number
function Scaler:scale() end
---after each step @return boolean false: an overflow at the least scale
function Scaler:update(overflow) end
---@return table
function Scaler:state() end
function Scaler:load(state) end

------------------------------------------------------------------------------- ranks (internal; bindings/lua_comm.c)
---from 0 @return integer
function core.rank() end
---@return integer
function core.world_size() end
---among the ranks of this machine, from 0 @return integer
function core.local_rank() end
---what carries the data: "self", "shm", "mpi" @return string
function core.plane() end
---collectives so far, and a hash of their sequence (tests, reports)
---@return {n_all_gather: integer, n_all_to_all: integer, n_broadcast: integer, n_barrier: integer, nbytes_sent: integer, hash: string, waited: number}
function core.comm_stats() end
-- The rest are collectives: all ranks call them, in the same order. `what` says in messages what one is for. Results are
-- new tensors without history.
---returns when all have called it @param what? string
function core.barrier(what) end
---All ranks' rows, joined along dimension 1. Ranks may have different numbers of rows; all else, and the dtype, which may
---be any, have to be alike. A scalar counts as one row. @param t Tensor @param what? string @return Tensor
function core.all_gather_tensor(t, what) end
---of floats or int64, of one shape and dtype @param t Tensor @param reduction "sum"|"mean" @param what? string @return Tensor
function core.all_reduce_tensor(t, reduction, what) end
---root's tensor; the others' is not looked at @param t Tensor? @param root integer from 0 @param what? string @return Tensor
function core.broadcast_tensor(t, root, what) end
---exact; every rank gives as many @param list number[] @param what? string @return number[][] by rank, from 1
function core.gather_numbers(list, what) end
---root's text; the others' is not looked at @param text string? @param root integer from 0 @param what? string @return string
function core.broadcast_string(text, root, what) end
---all ranks' texts @param text string @param what? string @return string[] by rank, from 1
function core.gather_strings(text, what) end

------------------------------------------------------------------------------- files (bindings/lua_io.c)
---@param names? string[] only these @return table<string, Tensor>, string[] order, table<string, string>? metadata
function core.safetensors_load(path, names) end
---Checks first, then fills: into[name] gets the bytes of file[name], cast to its dtype. Missing names, unexpected names and
---wrong shapes are all listed in one error, unless opts.strict is false. @param into table<string, Tensor>
---@param opts? {strict: boolean?, rename: (fun(name: string): string?)?} rename maps a file's name to into's; nil: ignored
---@return string[] missing, string[] unexpected
function core.safetensors_load_into(path, into, opts) end
---@param tensors table<string, Tensor> @param order? string[] (default: sorted names) @param metadata? table<string,string>
function core.safetensors_save(path, tensors, order, metadata) end
---JSON null is core.null; arrays and objects become tables, integers stay integers
function core.json_decode(text, name) end
---keys sorted; a table with 1..n is an array, an empty one an object unless opts.empty_array; {indent: integer?}
function core.json_encode(value, opts) end
function core.json_load(path) end
core.null = nil
---the library's version
core._VERSION = ""

------------------------------------------------------------------------------- text (bindings/lua_text.c)
---@class Tokenizer
---@field vocab_size integer one more than the highest id
local Tokenizer = {}
---Its methods (internal: ztrain.tokenizer adds to them).
core.Tokenizer = Tokenizer
---@return Tokenizer
function core.tokenizer_load(path) end
---@param paths string[]
---@param opts? {vocab_size: integer?, min_frequency: integer?, special_tokens: string[]?} 30000, 2, none
---@return Tokenizer
function core.tokenizer_train_bpe(paths, opts) end
---@param text string
---@param opts? {add_special_tokens: boolean?, split_special_tokens: boolean?} both false
---@return integer[]
function Tokenizer:encode_ids(text, opts) end
---the exact bytes @param ids integer[]|Tensor @param opts? {skip_special_tokens: boolean?}
---@return string
function Tokenizer:decode(ids, opts) end
---@param token string as files spell it @return integer?
function Tokenizer:token_to_id(token) end
---the bytes that an id stands for @return string?
function Tokenizer:id_to_token(id) end
---@param role "bos"|"eos"|"unk"|"pad"|"sep"|"cls"|"mask" @return integer?
function Tokenizer:special(role) end
---tokenizer.json, vocab.json, merges.txt, tokenizer_config.json, special_tokens_map.json
function Tokenizer:save_pretrained(dir) end
---of everything that encoding depends on @return string 16 hex digits
function Tokenizer:hash() end
---What stands around one text, or two (internal). @param pair? boolean
---@return {id: integer?, text: integer?, type_id: integer}[]
function Tokenizer:template(pair) end
---What tokenizer_config.json says of batches (internal).
---@return {max_length: integer?, padding_side: string, truncation_side: string, type_ids: boolean}
function Tokenizer:settings() end

------------------------------------------------------------------------------- data (bindings/lua_data.c)
---@class Corpus
---@field block_count integer @field token_count integer @field block_size integer
local Corpus = {}
---@return Corpus
function core.corpus_open(path, tokenizer, block_size, cache_folder) end
---rows: positions from 1 @return Tensor int64 (#rows, block_size)
function Corpus:blocks(rows) end
---position (from 1) of sample i (from 1) of an epoch's shuffle @return integer
function core.order_at(seed, epoch, count, i) end

return core
