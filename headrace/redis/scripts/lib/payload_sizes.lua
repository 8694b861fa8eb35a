-- How many bytes payloads take: those in Redis together ('' in the hash), and those of each API key in all stores
-- (':' and the key's id). A payload's own field has its bytes and, behind a space, its key.

local function in_redis(ref) return string.sub(ref, 1, 6) == 'redis:' end

-- The bytes of payloads in Redis, or those of the payloads of a key.
local function counted(owner)
  return tonumber(call('HGET', keys.PAYLOAD_SIZES, owner and ':' .. owner or '') or '0') or 0
end

local function count_payload(ref, size, owner)
  call('HSET', keys.PAYLOAD_SIZES, ref, owner == '' and size or size .. ' ' .. owner)
  if in_redis(ref) then call('HINCRBY', keys.PAYLOAD_SIZES, '', size) end
  if owner ~= '' then call('HINCRBY', keys.PAYLOAD_SIZES, ':' .. owner, size) end
end

local function lower(field, size)
  local left = (tonumber(call('HGET', keys.PAYLOAD_SIZES, field) or '0') or 0) - size
  if left > 0 then
    call('HSET', keys.PAYLOAD_SIZES, field, whole(left))
  else
    call('HDEL', keys.PAYLOAD_SIZES, field)
  end
end

-- Returns the bytes of the payload; nil if it was not counted.
local function uncount_payload(ref)
  local size, owner = string.match(call('HGET', keys.PAYLOAD_SIZES, ref) or '', '^(%d+) ?(.*)$')
  if not size then return nil end
  call('HDEL', keys.PAYLOAD_SIZES, ref)
  if in_redis(ref) then lower('', tonumber(size)) end
  if owner ~= '' then lower(':' .. owner, tonumber(size)) end
  return size
end
